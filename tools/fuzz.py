"""Ask a server what its OpenAPI document allows, and what it does not, and count what goes wrong.

    python tools/fuzz.py --cases 2000                    # a tiny random model, from the tests
    python tools/fuzz.py --cases 2000 http://host:8000   # a running server

A case is wrong when it is answered with 5xx, with a status or a body that the document does not describe, or not
at all.
Needs the ``dev`` extra. Exits with 1 when there was one.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
SECONDS = 30.0  # after which a case counts as hanging
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
SMALL = {"max_tokens": 4, "timeout": 5.0, "n": 1}  # what keeps a case short, where a body leaves it open


def main(arguments: list[str]) -> int:
    """Fuzz; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="address of a running server; none: one is started")
    parser.add_argument("--cases", type=int, default=2000, help="cases, over all paths")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with served() if given.url is None else running(given.url) as url:
        wrong, statuses = fuzz(url, given.cases, given.seed)
    for path, counts in statuses.items():
        print(f"{path}: {sum(counts.values())} cases, {dict(sorted(counts.items()))}")
    for text in wrong[:20]:
        print(text, file=sys.stderr)
    print(f"{sum(map(Counter.total, statuses.values()))} cases, {len(wrong)} wrong")
    return bool(wrong)


def fuzz(url: str, cases: int, seed: int) -> tuple[list[str], dict[str, Counter[int]]]:
    """What was wrong, and how many cases of every path had which status."""
    import hypothesis
    import schemathesis

    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    wrong: list[str] = []
    statuses: dict[str, Counter[int]] = {path: Counter() for path in PATHS}
    quiet: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(hypothesis.HealthCheck)}
    for path, mode in itertools.product(PATHS, modes):

        def ask(case: Any, data: Any) -> None:
            if case.meta.generation.mode is modes[0]:
                case.body = thinned(case.body, data)
            if problem := one(case, statuses[case.operation.path]):
                wrong.append(f"{case.operation.path}: {problem}")

        made = schema[path]["POST"].as_strategy(generation_mode=mode)
        given = hypothesis.given(case=made, data=hypothesis.strategies.data())(ask)
        count = max(1, cases // (2 * len(PATHS)))
        limited = hypothesis.settings(max_examples=count, phases=[hypothesis.Phase.generate], **quiet)(given)
        hypothesis.seed(seed)(limited)()
    return wrong, statuses


def thinned(body: dict[str, Any], data: Any) -> dict[str, Any]:
    """A body with a few of its fields: with all of them at once, one is always impossible."""
    from hypothesis import strategies

    needed = {"messages", "prompt", "tokens"}
    more = strategies.sets(strategies.sampled_from(sorted({*body, "n"} - needed - {"model"})), max_size=3)
    kept = needed | data.draw(more)
    return {key: value for key, value in body.items() if key in kept}


def one(case: Any, counts: Counter[int]) -> str:
    """Ask one case; what is wrong with its answer, or nothing."""
    import requests
    from schemathesis import checks
    from schemathesis.core.failures import FailureGroup

    wanted = [checks.CHECKS.get_one(name) for name in CHECKS]
    if isinstance(case.body, dict) and case.operation.path.startswith("/v1/"):
        case.body = SMALL | case.body
    begin = time.monotonic()
    try:
        response = case.call(timeout=SECONDS)
    except requests.RequestException as error:
        return f"no answer to {case.body!r}: {error}"
    counts[response.status_code] += 1
    try:
        case.validate_response(response, checks=wanted)
    except FailureGroup as failures:
        said = "; ".join(str(each) for each in failures.exceptions)
        return f"{response.status_code} after {time.monotonic() - begin:.1f} s to {case.body!r}: {said}"
    return ""


@contextmanager
def served() -> Iterator[str]:
    """The address of a server over a tiny random model."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    tiny, conftest, scripted = map(import_module, ("engine.tiny", "server.conftest", "server.scripted"))
    with tempfile.TemporaryDirectory() as folder:
        models = tiny.Models(Path(folder) / "models")
        model = scripted.with_template(models.folders["target"], Path(folder) / "chat")
        with conftest.serving(conftest.tiny(model)) as (address, _):
            yield address


@contextmanager
def running(url: str) -> Iterator[str]:
    """One that runs already."""
    yield url.rstrip("/")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
