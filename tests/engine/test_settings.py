"""Per-request speculation; settings and prompts that are refused in one line with the setting and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.fakes import Scripted, drafting_with
from engine.tiny import VARIANTS, Models, fitting, idle, ids, same
from outrider import LLM, SamplingParams, SpeculationParams
from outrider.config import SpeculativeConfig
from outrider.drafters.registry import check
from outrider.engine import memory
from outrider.errors import ConfigError, ModelError, OutriderError, RequestError, VocabularyError

PROMPT = ids(40, seed=3, period=8)
BOTH = [VARIANTS["draft_model"], VARIANTS["ngram"]]


def spans_of(llm: LLM, params: SamplingParams) -> tuple[Any, list[int]]:
    """The answer, and the rows of every forward after the prompt's."""
    target, rows = llm._engine.target, []
    forward = type(target).forward

    def watch(spans: Any, *args: Any) -> Any:
        rows.append(sum(len(span.tokens) for span in spans))
        return forward(target, spans, *args)

    target.forward = watch  # type: ignore[method-assign]
    try:
        return llm.generate(PROMPT, params)[0], rows[1:]
    finally:
        del target.forward  # type: ignore[attr-defined]


def params_with(**wish: Any) -> SamplingParams:
    return SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, speculation=SpeculationParams(**wish))


@pytest.mark.parametrize("wish", [{"enabled": False}, {"num_speculative_tokens": 0}])
def test_off_means_no_drafter_and_no_draft_rows(models: Models, wish: dict[str, Any]) -> None:
    llm = models.llm([VARIANTS["synthetic"], VARIANTS["ngram"]])
    drafter = Scripted()
    with drafting_with(llm, drafter):
        output, rows = spans_of(llm, params_with(**wish))
    assert rows == [1] * 23
    assert not drafter.calls
    assert output.stats.num_draft_tokens == output.stats.num_spec_steps == 0
    same(output.outputs[0], models.plain(PROMPT, params_with()).outputs[0])


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_a_request_sets_its_own_k(models: Models, tokens: int) -> None:
    llm = models.llm([{**config, "num_speculative_tokens": 3} for config in BOTH])
    output, rows = spans_of(llm, params_with(num_speculative_tokens=tokens))
    assert max(rows) == tokens + 1
    assert len(output.stats.proposed_per_position) == tokens
    output, rows = spans_of(llm, params_with())
    assert max(rows) == 4


def test_k_counts_the_tokens_of_a_path_and_the_nodes_of_a_tree(models: Models) -> None:
    paths, rows = spans_of(models.llm(VARIANTS["draft_model paths"]), params_with(num_speculative_tokens=2))
    assert max(rows) == 1 + 3 * 2
    assert len(paths.stats.proposed_per_position) == 2
    tree, rows = spans_of(models.llm(VARIANTS["draft_model tree"]), params_with(num_speculative_tokens=5))
    assert max(rows) == 1 + 5
    assert len(tree.stats.proposed_per_position) == 2


def test_a_request_chooses_among_the_loaded_methods(models: Models) -> None:
    llm = models.llm(BOTH)
    drafter: Any = llm._engine.drafting.methods["draft_model"].drafter
    calls: list[int] = []
    propose = type(drafter).propose
    drafter.propose = lambda *args: calls.append(1) or propose(drafter, *args)
    try:
        with_ngram = llm.generate(PROMPT, params_with(method="ngram"))[0]
        assert not calls
        assert with_ngram.stats.num_draft_tokens > 0
        llm.generate(PROMPT, params_with())
        assert calls
    finally:
        del drafter.propose
    with pytest.raises(RequestError, match=r"speculation\.method='medusa' is not loaded; loaded: draft_model, ngram"):
        llm.generate(PROMPT, params_with(method="medusa"))
    idle(llm)


def test_a_task_goes_to_the_methods_that_route(models: Models) -> None:
    members = [{"method": "ngram"}, {"method": "suffix"}]
    routed = {"method": "route", "drafters": members, "route_tasks": {"code": "suffix"}}
    llm = models.llm([routed, {"method": "ngram"}])
    params = SamplingParams(max_tokens=12, temperature=0)
    asked = {"task": "code", "method": "route"}
    answer = llm.generate(PROMPT, params.model_copy(update={"speculation": SpeculationParams(**asked)}))[0]
    assert answer.outputs[0].token_ids == models.plain(PROMPT, params).outputs[0].token_ids
    wrong = params.model_copy(update={"speculation": SpeculationParams(task="code", method="ngram")})
    with pytest.raises(RequestError, match=r"speculation\.task='code' is not used by method 'ngram'.*: route"):
        llm.generate(PROMPT, wrong)


def test_times_are_told(models: Models) -> None:
    llm = models.fresh(VARIANTS["draft_model"] | {"num_speculative_tokens": 3}, max_num_seqs=1)
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    first, second = (output.stats for output in llm.generate([PROMPT, PROMPT], params))
    for stats in (first, second):
        assert 0.0 < stats.prefill_seconds < 5.0
        assert stats.draft_seconds > 0.0
        assert stats.verify_seconds > 0.0
        assert stats.overhead_seconds > 0.0
        assert stats.queue_seconds < stats.time_to_first_token
    assert 0.0 < first.time_to_first_token < second.time_to_first_token
    assert second.queue_seconds > first.decode_seconds > 0.0


def test_reasons_are_told(models: Models) -> None:
    llm = models.fresh(VARIANTS["draft_model"])
    llm.generate(PROMPT, SamplingParams(max_tokens=4, temperature=0.0))
    assert [line for line in llm.explain() if line.startswith("exact: True")]
    assert [line for line in llm.explain() if line.startswith("request 0: ")]


# ---- refusals


def refused(error: type[OutriderError], match: str) -> Any:
    return pytest.raises(error, match=match)


def one_line(caught: Any) -> None:
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 20


PROMPTS: list[tuple[Any, str]] = [
    ("", "prompt is empty: give at least one token"),
    ([[]], "prompt is empty"),
    ({"prompt_token_ids": []}, "prompt is empty"),
    ({"prompt": ""}, "prompt is empty"),
    ({}, "prompt: give 'prompt' or 'prompt_token_ids'"),
    ({"prompt": 7}, "prompt is a int: give text"),
    ({"text": "x"}, r"prompt: unknown keys \['text'\]; known: "),
    ([["a", "b"]], "prompt is neither text nor a list of token ids"),
    ({"prompt_token_ids": [1.5]}, "prompt_token_ids is neither text nor"),
    ([[5, 100_000]], r"prompt: token id 100000 is outside the vocabulary of \d+; remove it"),
    ([[-1, 5]], "prompt: token id -1 is outside"),
    ([ids(384)], "prompt of 384 tokens leaves no room in a context of 384: shorten it, or raise max_model_len"),
]


@pytest.mark.parametrize(("prompt", "message"), PROMPTS)
def test_bad_prompts(models: Models, prompt: Any, message: str) -> None:
    llm = models.llm(BOTH)
    with refused(RequestError, message) as caught:
        llm.generate([PROMPT, prompt] if isinstance(prompt, dict) else prompt)
    one_line(caught)
    idle(llm)


PARAMS: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {9999: 1.0}}, "logit_bias: token id 9999 is outside the vocabulary"),
    ({"logit_bias": {5: float("nan")}}, "logit_bias holds NaN"),
    ({"allowed_token_ids": [9999]}, "allowed_token_ids: token id 9999"),
    ({"stop_token_ids": [9999]}, "stop_token_ids: token id 9999"),
    ({"bad_words": [""]}, "bad_words holds an empty string: remove it"),
    ({"prediction": [9999]}, "prediction holds a token id outside the vocabulary"),
    ({"stop": "x", "detokenize": False}, "stop needs text: set detokenize=True, or use stop_token_ids"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_k": -2}, "top_k"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens=9 is over max_tokens=3: lower min_tokens"),
    ({"best_of": 3}, "SamplingParams has no setting 'best_of'; it has: n, temperature"),
]


@pytest.mark.parametrize(("values", "message"), PARAMS)
def test_bad_parameters(models: Models, values: dict[str, Any], message: str) -> None:
    llm = models.llm(BOTH)
    with pytest.raises((RequestError, ConfigError), match=message) as caught:
        llm.generate([PROMPT, PROMPT], [SamplingParams(), SamplingParams(**values)])
    one_line(caught)
    idle(llm)


def test_as_many_parameters_as_prompts(models: Models) -> None:
    llm = models.llm(BOTH)
    with refused(RequestError, "2 sampling_params for 1 prompts: give one, or one a prompt"):
        llm.generate(PROMPT, [SamplingParams()] * 2)
    with refused(RequestError, "stream: give either prompt or messages"):
        llm.stream()
    assert llm.generate([]) == []


ENGINES: list[tuple[dict[str, Any], str]] = [
    ({"kv_cache_tokens": 16}, "kv_cache_tokens=16 holds less than two blocks of 16: raise it"),
    ({"max_model_len": 1000}, "max_model_len=1000 is over the model's context of 384; lower it"),
    ({"max_num_seqs": 0}, "max_num_seqs=0"),
    ({"max_num_batched_tokens": 3}, "max_num_batched_tokens=3 must be at least max_num_seqs=16"),
    ({"dtype": "int3"}, "dtype='int3' is unknown; choose one of auto, float32"),
    ({"threads": 0}, "threads=0: choose 1 to"),
    ({"config": {"method": "telepathy"}}, "no drafter is called 'telepathy'; choose one of: ngram"),
    ({"config": {"method": "ngram", "model": "draft"}}, "setting model is not used by method 'ngram'"),
    ({"config": {"method": "ngram", "k": 3}}, "SpeculativeConfig has no setting 'k'; `outrider methods NAME` lists"),
    ({"config": {"method": "ngram", "prompt_lookup_mx": 3}}, "did you mean 'prompt_lookup_max'?"),
    ({"config": [VARIANTS["ngram"], VARIANTS["ngram"]]}, "method 'ngram' is given twice"),
    ({"config": {"method": "ngram", "verifier": "kseq"}}, "verifier: 'kseq' takes iid drafts"),
    ({"config": {"method": "synthetic", "synthetic_acceptance_rates": [2.0]}}, "synthetic_acceptance_rates"),
]


@pytest.mark.parametrize(("values", "message"), ENGINES)
def test_impossible_engines(models: Models, values: dict[str, Any], message: str) -> None:
    with refused(ConfigError, message) as caught:
        models.fresh(**values)
    one_line(caught)


def test_a_wrong_combination_is_refused_before_weights_load(tmp_path: Path) -> None:
    with refused(ConfigError, "kseq"):
        LLM(str(tmp_path / "nothing"), speculative_config={"method": "ngram", "verifier": "kseq"})


def test_unknown_and_broken_models(models: Models, tmp_path: Path) -> None:
    with refused(ModelError, "does not exist: check the path") as caught:
        LLM(str(tmp_path / "nothing"))
    one_line(caught)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with refused(ModelError, "broken.gguf") as caught:
        LLM(str(broken))
    one_line(caught)
    with refused(ModelError, "does not exist: check the path"):
        config = {"method": "draft_model", "model": str(tmp_path / "nothing")}
        LLM(models.folders["target"], speculative_config=config)


def test_a_draft_of_another_vocabulary_is_refused(models: Models) -> None:
    want = "the draft model's vocabulary .* set vocabulary to 'tli' or 'slem', use a draft model of the target's family"
    with refused(VocabularyError, want) as caught:
        models.fresh({"method": "draft_model", "model": "small draft", "vocabulary": "same"})
    one_line(caught)


def test_a_draft_of_another_vocabulary_says_what_is_shared(models: Models) -> None:
    llm = models.llm({"method": "draft_model", "model": "small draft", "verifier": "rejection"})
    shared = "12 tokens are in both vocabularies, 100% of the draft model's 12 and 11% of the target's 108"
    note = f"vocabulary='tli': {shared}"
    assert llm.describe()["notes"] == {"draft_model": note}
    assert f"draft_model: {note}" in llm.explain()
    llm = models.llm({"method": "draft_model", "model": "small draft"})
    assert llm.describe()["notes"] == {"draft_model": f"vocabulary='slem': {shared}"}


def test_which_rules_take_texts() -> None:
    config = {"method": "draft_model", "model": "x", "vocabulary": "slem"}
    assert {"sample", "rejection", "block", "traversal"} <= set(fitting(config))
    with refused(ConfigError, "'kseq' takes iid drafts and method 'draft_model' makes delta drafts; choose one of"):
        check(SpeculativeConfig(**config, verifier="kseq"))
    with refused(ConfigError, "vocabulary is not used by method 'ngram'"):
        check(SpeculativeConfig(method="ngram", vocabulary="tli"))


# ---- memory


def test_the_memory_budget_is_the_documented_one() -> None:
    reserved = memory.logits_bytes(vocab_size=50_000, max_num_seqs=16, draft_tokens=8)
    assert reserved == 4 * 50_000 * 16 * 9
    free, target, draft = 8 << 30, 46_080, 12_288
    tokens = memory.affordable_tokens(free, reserved, [target, draft])
    share = free * memory.CACHE_SHARE
    assert tokens * (target + draft) + reserved <= share < (tokens + 1) * (target + draft) + reserved
    assert memory.affordable_tokens(1 << 20, reserved, [target]) == 0


def test_the_cache_is_whole_blocks_and_no_larger_than_of_use() -> None:
    sizes: dict[str, Any] = {"max_model_len": 100, "max_num_seqs": 2, "block_size": 16}
    assert memory.cache_tokens(None, affordable=10**9, **sizes) == 208
    assert memory.cache_tokens(None, affordable=100, **sizes) == 112
    assert memory.cache_tokens(5000, affordable=0, **sizes) == 5008
    with refused(ConfigError, "free memory .* set kv_cache_tokens"):
        memory.cache_tokens(None, affordable=20, **sizes)


def test_a_drafts_pool_holds_what_the_targets_does_and_one_draft_a_sequence(models: Models) -> None:
    tokens = memory.draft_cache_tokens(4096, max_model_len=100, max_num_seqs=2, draft_tokens=5, block_size=16)
    assert tokens == 2 * 112 + 2 * 32
    assert memory.draft_cache_tokens(64, max_model_len=100, max_num_seqs=2, draft_tokens=5, block_size=16) == 64 + 64
    llm = models.fresh(VARIANTS["draft_model"] | {"num_speculative_tokens": 4}, max_num_seqs=3, kv_cache_tokens=160)
    drafter: Any = llm._engine.drafting.methods["draft_model"].drafter
    assert drafter.pool.num_blocks * 16 == 160 + 3 * 32
    assert llm.describe()["kv_cache_tokens"] == 160
    config = VARIANTS["hierarchical"] | {"num_speculative_tokens": 4}  # the inner drafter's rows take room as well
    llm = models.fresh(config, max_num_seqs=3, kv_cache_tokens=160)
    drafter = llm._engine.drafting.methods["hierarchical"].drafter
    assert drafter.pool.num_blocks * 16 == 160 + 3 * (32 + 16)


@pytest.mark.parametrize(("model", "kept"), [("draft", "ouroboros"), ("other draft", "draft_model")])
def test_auto_drafts_by_phrases_with_a_model_of_the_same_vocabulary(models: Models, model: str, kept: str) -> None:
    drafter = models.llm({"method": "auto", "model": model})._engine.drafting.methods["auto"].drafter
    assert [member.name for member in drafter.members][-1] == kept  # type: ignore[attr-defined]
