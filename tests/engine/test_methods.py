"""Every method, chain and tree, alone and in a ragged batch, under every rule that takes it, against plain decoding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.tiny import ASKS, VARIANTS, Models, consistent, covered_methods, fitting, idle, prompts, same
from outrider import LLM, SamplingParams
from outrider.core.verifiers.registry import VERIFIERS
from outrider.outputs import RequestOutput

RAGGED = (1, 5, 15, 16, 17, 31, 33, 120)
K = 4
variants = pytest.mark.parametrize("variant", VARIANTS)
temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


def wish(models: Models, prompt: list[int], temperature: float, seed: int, variant: str) -> SamplingParams:
    """Parameters whose prediction is the plain answer, for the methods that follow one, and with the structured output
    that ``variant`` needs."""
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=seed, logprobs=3, **ASKS.get(variant, {}))
    answer = models.plain(prompt, params).outputs[0].token_ids
    return params.model_copy(update={"prediction": [*answer[:9], 5, *answer[10:]]})


def test_every_method_of_the_registry_is_covered() -> None:
    covered_methods()


@variants
@temperatures
@pytest.mark.parametrize("fixed", [True, False], ids=["K=4", "automatic"])
def test_text_and_logprobs_equal_plain_decoding(models: Models, variant: str, temperature: float, fixed: bool) -> None:
    llm = models.llm(VARIANTS[variant] | ({"num_speculative_tokens": K} if fixed else {}))
    asked = prompts(RAGGED)
    params = [wish(models, prompt, temperature, seed, variant) for seed, prompt in enumerate(asked)]
    plain = [models.plain(prompt, each) for prompt, each in zip(asked, params, strict=True)]
    drafted = 0
    for batch in (1, len(asked)):
        for first in range(0, len(asked), batch):
            chosen = slice(first, first + batch)
            outputs = llm.generate(asked[chosen], params[chosen])
            for output, want in zip(outputs, plain[chosen], strict=True):
                same(output.outputs[0], want.outputs[0])
                consistent(output)
                drafted += output.stats.num_accepted_draft_tokens
    assert drafted > 0
    idle(llm)


def test_tree_and_paths_are_verified_as_such(models: Models) -> None:
    llm = models.llm(VARIANTS["draft_model tree"])
    seen = []
    forward = llm._engine.target.forward

    def watch(spans: Any, *args: Any) -> Any:
        seen.extend(span for span in spans if span.parents is not None)
        return forward(spans, *args)

    llm._engine.target.forward = watch  # type: ignore[method-assign]
    try:
        llm.generate(prompts([9])[0], SamplingParams(max_tokens=8, temperature=0))
    finally:
        del llm._engine.target.forward  # type: ignore[attr-defined]
    assert max(len(span.tokens) for span in seen) == 1 + 3 + 6 + 6


def rules(*, lossless: bool) -> list[tuple[str, str]]:
    """(variant, verifier) for every pair that fits, but the default rule."""
    return [
        (name, rule)
        for name, config in VARIANTS.items()
        for rule in fitting(config)
        if rule != "sample" and VERIFIERS[rule].lossless == lossless
    ]


@pytest.mark.parametrize(("variant", "rule"), rules(lossless=True))
def test_lossless_rules_equal_plain_decoding_at_temperature_0(models: Models, variant: str, rule: str) -> None:
    llm = models.llm(VARIANTS[variant] | {"verifier": rule, "num_speculative_tokens": K})
    asked = prompts(RAGGED)
    params = [wish(models, prompt, 0.0, 0, variant) for prompt in asked]
    outputs = llm.generate(asked, params)
    for prompt, each, output in zip(asked, params, outputs, strict=True):
        same(output.outputs[0], models.plain(prompt, each).outputs[0])
        consistent(output)
    assert sum(output.stats.num_accepted_draft_tokens for output in outputs) > 0
    idle(llm)


@pytest.mark.parametrize(("variant", "rule"), rules(lossless=True))
def test_lossless_rules_are_reproducible_with_a_seed(models: Models, variant: str, rule: str) -> None:
    llm = models.llm(VARIANTS[variant] | {"verifier": rule, "num_speculative_tokens": K})
    asked = prompts(RAGGED)
    params = [wish(models, prompt, 1.0, seed, variant) for seed, prompt in enumerate(asked)]
    texts = []
    for order in (slice(None), slice(None, None, -1)):
        llm.close()  # what earlier requests left in a drafter's store may change what it proposes
        outputs = llm.generate(asked[order], params[order])[order]
        texts.append([output.outputs[0].token_ids for output in outputs])
        for output in outputs:
            consistent(output)
    if "'suffix'" in repr(VARIANTS[variant]) or variant.startswith(("auto", "token_recycling", "ouroboros")):
        return  # its store is filled in the order in which requests finish
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("variant", "rule"), rules(lossless=False))
def test_lossy_rules_say_so_and_are_greedy_at_temperature_0(models: Models, variant: str, rule: str) -> None:
    assert not VERIFIERS[rule].lossless
    llm = models.llm(VARIANTS[variant] | {"verifier": rule, "num_speculative_tokens": K})
    prompt = prompts([17])[0]
    params = wish(models, prompt, 0.0, 0, variant)
    same(llm.generate(prompt, params)[0].outputs[0], models.plain(prompt, params).outputs[0])
    consistent(llm.generate(prompt, wish(models, prompt, 1.0, 3, variant))[0])


ALLOWED = [2, 3, 5]
SMALL_PROMPT = [4, 6, 8]
BOUND = 54.1  # 99.9 % of the chi-square law with 26 degrees of freedom
SMALL: dict[str, dict[str, Any]] = {
    "chain": {"method": "draft_model", "model": "small draft"},
    "tree": {"method": "draft_model", "model": "small draft", "tree": [2, 2]},
    "paths": {"method": "draft_model", "model": "small draft", "num_paths": 3},
    "itself": {"method": "layer_skip", "skip_mlp_layers": [0], "draft_stop_threshold": 0.2},
    "hierarchical": {
        "method": "hierarchical",
        "model": "small draft",
        "drafter": {"method": "ngram", "prompt_lookup_min": 1},
    },
    "merge": {
        "method": "merge",
        "drafters": [
            {"method": "draft_model", "model": "small draft"},
            {"method": "draft_model", "model": "small draft", "max_model_len": 32},
        ],
    },
    "route": {"method": "route", "drafters": [{"method": "ngram"}, {"method": "draft_model", "model": "small draft"}]},
}
STATISTICS = [
    (shape, rule, fixed)
    for shape, config in SMALL.items()
    for rule in fitting(config)
    if VERIFIERS[rule].lossless and rule != "sample"
    for fixed in {"hierarchical": (True,), "chain": (True, False), "paths": (True, False)}.get(shape, (False,))
]


@pytest.fixture(scope="module")
def exact_law(models: Models) -> torch.Tensor:
    """p of the first three tokens [3 ** 3], from transformers' own forward."""
    net = LlamaForCausalLM.from_pretrained(models.folders["small"], dtype=torch.float32).eval()
    words = list(itertools.product(range(3), repeat=3))
    rows = torch.tensor([SMALL_PROMPT + [ALLOWED[i] for i in word] for word in words])
    with torch.inference_mode():
        laws = net(rows).logits[:, 2:5][:, :, ALLOWED].double().log_softmax(-1)
    total = laws.gather(2, torch.tensor(words)[:, :, None]).sum((1, 2))
    return total.exp()


@pytest.mark.parametrize(("shape", "rule", "fixed"), STATISTICS)
def test_sampled_texts_follow_the_targets_law(
    models: Models, exact_law: torch.Tensor, shape: str, rule: str, fixed: bool
) -> None:
    config = SMALL[shape] | {"verifier": rule} | ({"num_speculative_tokens": 2} if fixed else {})
    llm = models.llm(config, "small", max_num_seqs=64)
    if not fixed:  # paths that are not likely enough are not grown
        planner: Any = llm._engine.planner
        planner.budget, planner.floor = lambda *_: 6, lambda *_, **__: 0.4
    params = SamplingParams(n=1000, max_tokens=3, temperature=1.0, allowed_token_ids=ALLOWED, ignore_eos=True)
    outputs = llm.generate(SMALL_PROMPT, params.model_copy(update={"seed": 1}))
    assert outputs[0].stats.num_accepted_draft_tokens > 100
    assert chi_square(outputs, exact_law) < BOUND
    idle(llm)


def chi_square(outputs: list[RequestOutput], law: torch.Tensor) -> float:
    counts = torch.zeros(27, dtype=torch.float64)
    for output in outputs:
        for sample in output.outputs:
            first, second, third = (ALLOWED.index(token) for token in sample.token_ids)
            counts[9 * first + 3 * second + third] += 1
    expected = law * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_plain_sampling_follows_the_law_too(models: Models, exact_law: torch.Tensor) -> None:
    llm: LLM = models.llm(None, "small", max_num_seqs=64)
    params = SamplingParams(n=1000, max_tokens=3, temperature=1.0, allowed_token_ids=ALLOWED, ignore_eos=True, seed=5)
    assert chi_square(llm.generate(SMALL_PROMPT, params), exact_law) < BOUND
