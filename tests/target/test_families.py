"""Every family against transformers' own forward: packed prefill, chunks, single rows, trees, levels, taps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outrider import native
from outrider.errors import ModelError
from outrider.target.batch import Span
from outrider.target.model import Target
from target.tiny import FAMILIES, LEAN, cache, reference, scattered, target_of, tokens

PARENTS = [-1, -1, 0, 0, 1, 2, 5, 5]  # two roots, siblings, a path of four
BACKENDS = ["native", "gather", "sdpa"]
PATHS = [(family, True) for family in LEAN] + [(family, False) for family in FAMILIES]
NAMES = [f"{family}-{'lean' if lean else 'general'}" for family, lean in PATHS]
paths = pytest.mark.parametrize(("family", "lean"), PATHS, ids=NAMES)
TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-4 if native.library() else 0.04}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and native.library() is None:
        pytest.skip(native.status().reason)
    return str(request.param)


def plain(model: Any, ids: list[int]) -> Tensor:
    """Logits [len(ids), vocab] of transformers' own forward, long enough for LongRoPE's long factors."""
    longer = ids + [3] * (64 - len(ids))
    return model(torch.tensor([longer]), use_cache=False).logits[0, : len(ids)]


def close(got: Tensor, want: Tensor, tolerance: float = 1e-4) -> None:
    assert got.shape == want.shape
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance * float(want.abs().max()))


def branches(parents: list[int]) -> list[list[int]]:
    """The rows from the root down to each row."""
    out: list[list[int]] = []
    for row, parent in enumerate(parents):
        out.append([*(out[parent] if parent >= 0 else []), row])
    return out


def check(model: Any, target: Target, tolerance: float) -> None:
    """Two packed prompts, then chunks and single rows, then a tree and the same tree level by level."""
    one, two = tokens(45, 1), tokens(21, 2)
    storage, pool = cache(target)
    context, pool = scattered(64, pool)
    other, pool = scattered(64, pool)
    first = target.forward([Span(one[:20], context, 0), Span(two, other, 0, logits=[0, 20])], storage).logits
    want = plain(model, one)
    close(first, torch.cat([want[:20], plain(model, two)[[0, 20]]]), tolerance)
    chunks = [target.forward([Span(one[at : at + 7], context, at)], storage).logits for at in (20, 27, 34)]
    singles = [target.forward([Span(one[at : at + 1], context, at)], storage).logits for at in range(41, 45)]
    close(torch.cat([*chunks, *singles]), want[20:45], tolerance)
    draft = tokens(len(PARENTS), 3)
    tree = target.forward([Span(draft, context, 45, parents=PARENTS)], storage).logits
    for row, branch in enumerate(branches(PARENTS)):
        close(tree[row], plain(model, one + [draft[at] for at in branch])[-1], tolerance)
    close(torch.cat(levels(target, draft, context, storage)), tree, tolerance)


def levels(target: Target, draft: list[int], context: Tensor, storage: Any) -> list[Tensor]:
    """The rows of the tree, one level a forward, ancestors given by their slots; in the order of the rows."""
    above = branches(PARENTS)
    slot = context[45 : 45 + len(PARENTS)].tolist()
    rows: dict[int, Tensor] = {}
    for depth in range(1, max(map(len, above)) + 1):
        level = [row for row, branch in enumerate(above) if len(branch) == depth]
        span = Span(
            [draft[row] for row in level],
            context,
            45,
            slots=[slot[row] for row in level],
            paths=[[slot[at] for at in above[row][:-1]] for row in level],
        )
        rows.update(zip(level, target.forward([span], storage).logits, strict=True))
    return [rows[row][None] for row in range(len(PARENTS))]


@paths
def test_every_row_is_what_transformers_computes(family: str, lean: bool, backend: Any) -> None:
    model = reference(family)
    target = target_of(model, backend=backend, lean=lean, exact=backend != "sdpa")
    check(model, target, TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@paths
def test_rounded_weights_compute_what_transformers_computes_with_them(family: str, lean: bool, dtype: str) -> None:
    model = reference(family, dtype, dtype == "bfloat16" and native.library() is None)
    target = target_of(model, dtype, lean=lean, exact=False)
    check(model, target, TOLERANCE[dtype] * (3 if "mo" in family or "mix" in family else 1))


@paths
def test_taps_are_the_outputs_of_the_layers(family: str, lean: bool) -> None:
    model = reference(family)
    target = target_of(model, lean=lean, exact=False)
    ids = tokens(40)
    states = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states
    storage, pool = cache(target)
    context, _ = scattered(48, pool)
    out = target.forward([Span(ids, context, 0, logits=[])], storage, hidden_layers=[1, 0, 2])
    assert out.logits.shape == (0, target.vocab_size)
    assert out.hidden is not None
    second, first, last = out.hidden.chunk(3, dim=1)
    close(first, states[1][0])
    close(second, states[2][0])
    close(model.model.norm(last), states[3][0])


@paths
def test_only_the_wanted_rows_get_logits(family: str, lean: bool) -> None:
    target = target_of(reference(family), lean=lean, exact=False)
    storage, pool = cache(target)
    context, pool = scattered(32, pool)
    other, _ = scattered(32, pool)
    spans = [Span(tokens(9), context, 0), Span(tokens(12, 1), other, 0)]
    full = target.forward(spans, storage).logits
    spans[0].logits, spans[1].logits = [8, 2], [11]
    assert full.shape == (21, target.vocab_size)
    close(target.forward(spans, storage).logits, full[[8, 2, 20]])


SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHARED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "head_dim": 16,
}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "num_key_value_heads": 4}
MORE: dict[str, dict[str, Any]] = {
    "GPT2": GPT,
    "GPTNeoX": {"rope_parameters": PARTIAL, "num_key_value_heads": 4},
    "GPTJ": {**GPT, "rotary_dim": 8},
    "OPT": {"ffn_dim": 80, "word_embed_proj_dim": 64, "num_key_value_heads": 4},
    "Phi": {},
    "Starcoder2": {"sliding_window": 16},
    "Cohere": {},
    "Cohere2": SLIDING,
    "Granite": {"residual_multiplier": 0.5, "logits_scaling": 2.0},
    "GraniteMoe": FEW,
    "SmolLM3": {"no_rope_layers": [1, 0, 1]},
    "Glm": {"head_dim": 16},
    "Glm4": {"head_dim": 16},
    "Olmo": {},
    "Olmo3": SLIDING,
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Exaone4": SLIDING,
    "Ernie4_5": {},
    "HunYuanDenseV1": {"head_dim": 16},
    "Helium": {"head_dim": 16},
    "SeedOss": {"head_dim": 16},
    "Qwen2Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "Dots1": SHARED,
    "Glm4Moe": SHARED,
    "Ernie4_5_Moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    "MiniMaxM2": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "Arcee": {},
    "BitNet": {},
    "Persimmon": {"num_key_value_heads": 4},
}


@pytest.mark.parametrize("family", MORE)
def test_other_families_too(family: str) -> None:
    model = reference(family, **MORE[family])
    target = target_of(model)
    check(model, target, 1e-4)
    assert target.exact is (family != "GraniteMoe"), target.exact_reason
    assert target.exact or "stay with torch" in target.exact_reason


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "StableLm": ({}, "drops keyword arguments"),
    "Nemotron": ({}, "drops keyword arguments"),
    "XGLM": (
        {"d_model": 64, "ffn_dim": 80, "num_layers": 3, "attention_heads": 4, "num_key_value_heads": 4},
        "packed rows differ",
    ),
    "GPT2": ({**GPT, "num_key_value_heads": 2}, "key shape"),
}


@pytest.mark.parametrize("family", WRONG)
def test_classes_that_compute_packed_rows_wrongly_are_refused(family: str) -> None:
    changes, message = WRONG[family]
    with pytest.raises(ModelError, match=message):
        target_of(reference(family, **changes), exact=False)
