"""A head reads hidden states of other layers than those that it was trained on."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import LOW, Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent

_NAME = "wrong_layers"
FLOOR = 0.7  # of the recorded agreement, as the engine's own check has it
_BETTER = 0.1  # more agreement than with the layers of the file


def _check(case: Case) -> Iterable[Finding]:
    head, measured = case.head, case.models.measured if case.models else None
    num_layers = head.bound.num_layers
    ids = _declared(head.block)
    if ids and (max(ids) > num_layers or min(ids) < 1):
        limit = f"1 to {num_layers}, counted from the embedding"
        evidence = [Evidence("layer ids of the head", str(ids), limit, "config.json")]
        yield finding(_NAME, "the head reads layers that the target does not have", Certainty.CERTAIN, evidence, 1.0)
        return
    if measured is None:
        raise Lacking("a run of the head (--measure, and a head that can be read for this target)")
    best, agreement = max(measured.others.items(), key=lambda item: item[1], default=((), 0.0))
    fallen = measured.recorded is not None and measured.agreement < FLOOR * measured.recorded
    if agreement < measured.agreement + _BETTER or (measured.recorded is not None and not fallen):
        return
    recorded = "" if measured.recorded is None else f"{percent(measured.recorded)} when it was trained"
    evidence = [
        Evidence(
            f"first draft is the target's choice with layers {_shown(measured.layers)}",
            percent(measured.agreement),
            recorded,
            f"a run over {measured.num_tokens} tokens",
        ),
        Evidence(f"with layers {_shown(best)}", percent(agreement), recorded, "the same run"),
    ]
    fault = f"the head reads layers {_shown(measured.layers)}, but was trained on {_shown(best)}"
    yield finding(_NAME, f"{fault} (outputs of blocks, from 0 on)", Certainty.CERTAIN, evidence, 1.0)


def _declared(facts: dict[str, object]) -> list[int]:
    config = facts.get("eagle_config")
    inner = config.get("eagle_aux_hidden_state_layer_ids") if isinstance(config, dict) else None
    ids = facts.get("eagle_aux_hidden_state_layer_ids") or inner
    return [int(id_) for id_ in ids] if isinstance(ids, list) else []


def _shown(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))


DIAGNOSIS = Diagnosis(
    _NAME,
    "a head reads other layers than it was trained on",
    "layer ids against the target's layers; a run over the head's test text with its own layers, with them counted one "
    "lower and higher, in other orders, and with EAGLE-3's default",
    "write the layers that the run found into the head's config: engines count them from the embedding "
    "(`eagle_aux_hidden_state_layer_ids` = block + 1), `outrider` and TensorRT-LLM count blocks from 0",
    _check,
    ("weights_not_loaded", *LOW),
)
