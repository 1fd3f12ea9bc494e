# Everything a person does with a checkout. A second `make` of the same target does no work.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PROMPTS ?= prompts.txt
BENCH_ARGS ?=

.PHONY: install demo test coverage lint docs site bench clean

install: $(STAMPS)/model

demo: install
	$(BIN)/outrider demo

# a process a core, and a file's tests in one process: they share models that are slow to make
test: $(STAMPS)/dev $(STAMPS)/model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile $(PYTEST_ARGS)

# tracing every line makes the proofs by enumeration many times slower
coverage: $(STAMPS)/dev $(STAMPS)/model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --cov --cov-report=term $(PYTEST_ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/docs.py --check
	$(MAKE) --no-print-directory site

docs: $(STAMPS)/dev
	$(BIN)/python tools/docs.py

# mkdocs-material announces its successor at every start; the build itself is quiet unless something is wrong
site: $(STAMPS)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: install
	for script in plain lookup overhead throughput; do \
		$(BIN)/python benchmarks/$$script.py --prompts $(PROMPTS) $(BENCH_ARGS) || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist site .coverage htmlcov

$(STAMPS)/venv:
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# torch first and pinned: a range would let pip pick another build
$(STAMPS)/torch: $(STAMPS)/venv
	$(BIN)/pip install --quiet "$(TORCH)"
	@touch $@

$(STAMPS)/package: $(STAMPS)/torch pyproject.toml
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(STAMPS)/dev: $(STAMPS)/torch pyproject.toml
	$(BIN)/pip install --quiet --editable ".[dev,docs]"
	@touch $@ $(STAMPS)/package

$(STAMPS)/model: | $(STAMPS)/package
	$(BIN)/outrider models get smollm2-135m
	@touch $@
