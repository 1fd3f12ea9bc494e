"""What was planned in a step and why, in one sentence."""

from __future__ import annotations

from outrider.engine.step import Work


def planned(item: Work) -> str:
    """The sentence for a step that is over."""
    seq = item.seq
    if not item.decoding:
        return "prefill: the prompt is computed and the first token chosen"
    if seq.off_reason:
        return seq.off_reason
    if not seq.method:
        return "plain decoding: no method"
    if item.part.num_rows > 1:
        return "nothing drafted: the sequence was recomputed after a preemption"
    if len(item.proposed):
        return _after_proposal(item)
    if item.num_asked:
        return f"asked for up to {_tokens(item.num_asked)}: the drafter had nothing to propose"
    if seq.finish_reason == "length":
        return "nothing drafted: one token was left"
    if seq.planned.startswith("speculation off"):
        return seq.planned
    return "nothing drafted: the drafter rests while none of its drafts pays"


def _after_proposal(item: Work) -> str:
    seq, kept, count = item.seq, len(item.draft), len(item.proposed)
    start = f"asked for up to {_tokens(item.num_asked)}, {count} proposed"
    automatic = seq.fixed_tokens is None and item.proposed.all_delta
    choice, _, reason = seq.planned.partition(": ")
    if not kept and not (automatic and choice.startswith("nothing drafted")):
        return f"{start}, none verified: its rows or laws were not valid, and the step went on without it"
    if not kept:
        return f"{start}, none verified: {reason}"
    if seq.fixed_tokens is not None:
        return f"{start}, all verified: K is fixed at {seq.fixed_tokens}"
    if not automatic:
        return f"{start}, all verified: a draft with laws keeps the shape it was drawn in"
    rest = "" if kept == count else f", {count - kept} pruned as too unlikely to pay for their rows"
    return f"{start}, {kept} verified{rest}: {reason} as a plain step"


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"
