"""What a fit starts from: the weights of a target, or a head over another vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outrider.heads.base import DraftHead, TargetWeights
from outrider.heads.kinds import make
from outrider.target.load import load_model

_RIDGE = 0.1  # of the mean of what it is added to


def read_target(model: str, **options: Any) -> TargetWeights:
    """The weights of a model that training needs, in float32."""
    loaded = load_model(model, dtype=torch.float32, device=torch.device("cpu"), **options)
    network: Any = loaded.model
    body = network.model
    scale = float(getattr(body.embed_tokens, "embed_scale", 1.0))
    return TargetWeights(
        embedding=body.embed_tokens.weight.detach() * scale,
        head=network.get_output_embeddings().weight.detach(),
        norm=body.norm.weight.detach(),
        block=body.layers[-1],
        config=loaded.config,
        eos_ids=loaded.tokenizer.eos_ids,
    )


@torch.no_grad()
def with_vocabulary(head: DraftHead, ids: Tensor, target: TargetWeights) -> DraftHead:
    """``head`` over the target ids ``ids`` [draft vocab], ascending: tokens that it could draft keep their rows, the
    others begin with the target's, as training has moved those of the known tokens on the whole."""
    out = make(head.config.model_copy(update={"draft_vocab_size": len(ids)}))
    own = {f"{name}.weight" for name, module in head.named_modules() if name.startswith("lm_head")} | {"d2t", "t2d"}
    out.load_state_dict({name: value for name, value in head.state_dict().items() if name not in own}, strict=False)
    out.set_vocabulary(ids)
    known = torch.isin(ids, head.target_ids)
    rows = torch.searchsorted(head.target_ids, ids[known])
    for name in own & dict(out.named_parameters()).keys():
        weight, kept = out.get_parameter(name), head.get_parameter(name)[rows]
        weight.copy_(target.head[ids] @ _moved(target.head[ids[known]], kept))
        weight[known] = kept
    return out


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """The matrix [hidden, hidden] that takes rows ``before`` [rows, hidden] to ``after``: ridge regression towards the
    identity, so that few rows say little."""
    gram = before.T @ before
    identity = torch.eye(len(gram))
    ridge = _RIDGE * gram.trace() / len(gram) + 1e-6
    turn: Tensor = torch.linalg.solve(gram + ridge * identity, before.T @ (after - before))
    return identity + turn
