"""A head's `d2t` is read as target ids, but engines add it to the draft id."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import LOW, Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking
from outrider.errors import ModelError

_NAME = "absolute_d2t"


def _check(case: Case) -> Iterable[Finding]:
    import torch

    from outrider.heads.layouts.base import check_map

    head = case.head
    d2t = head.checkpoint.tensors.get("d2t")
    if d2t is None:
        raise Lacking("a head with a draft vocabulary of its own (d2t)")
    try:
        check_map(d2t, head.checkpoint.tensors.get("t2d"), head.bound.vocab_size, str(head.folder))
    except ModelError as error:
        ids = d2t.long() + torch.arange(len(d2t))
        absolute = "target ids" in str(error)
        evidence = [
            Evidence("first entries of d2t", str(d2t[:4].tolist()), "offsets: small, never falling", "the head's file"),
            Evidence("last one", str(int(d2t[-1])), f"at most {head.bound.vocab_size - len(d2t)} as an offset"),
            Evidence("highest id that it gives", f"{int(ids.max()):,}", f"the target's {head.bound.vocab_size:,}"),
        ]
        fault = "d2t holds target ids, and engines add it to the draft id" if absolute else "d2t maps to wrong ids"
        yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 1.0)


DIAGNOSIS = Diagnosis(
    _NAME,
    "d2t holds target ids where offsets belong",
    "the head's `d2t` against the vocabulary, and against `t2d`",
    "store offsets: d2t[i] = target id - i",
    _check,
    ("weights_not_loaded", "wrong_layers", *LOW),
)
