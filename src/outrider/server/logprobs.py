"""Logprobs in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.outputs import Logprob
from outrider.target.tokenizer import Tokenizer

_LEAST = -9999.0  # stands for minus infinity, which is no JSON
Entries = Sequence[Mapping[int, Logprob]]


def of_chat(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Entries | None, num_best: int, names_ids: bool
) -> dict[str, Any] | None:
    """The form of chats. ``num_best``: alternatives of every token; ``names_ids``: tokens are called by their ids."""
    if logprobs is None:
        return None

    def entry(token: int, one: Logprob) -> dict[str, Any]:
        text = list(tokenizer.token_bytes(token))
        return {"token": _name(token, one, names_ids), "logprob": max(one.logprob, _LEAST), "bytes": text}

    content = []
    for token, each in zip(tokens, logprobs, strict=True):
        ranked = sorted(each.items(), key=lambda item: item[1].rank)[:num_best]
        best = [entry(other, one) for other, one in ranked]
        content.append({**entry(token, each[token]), "top_logprobs": best})
    return {"content": content, "refusal": None}


def of_completion(
    tokens: Sequence[int], logprobs: Entries | None, offset: int, names_ids: bool
) -> dict[str, Any] | None:
    """OpenAI's older form; ``offset``: characters before the first token."""
    if logprobs is None:
        return None
    out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token, each in zip(tokens, logprobs, strict=True):
        out["tokens"].append(_name(token, each[token], names_ids))
        out["token_logprobs"].append(max(each[token].logprob, _LEAST))
        best = {_name(other, one, names_ids): max(one.logprob, _LEAST) for other, one in each.items()}
        out["top_logprobs"].append(best)
        out["text_offset"].append(offset)
        offset += len(each[token].decoded_token)
    return out


def _name(token: int, logprob: Logprob, names_ids: bool) -> str:
    return f"token_id:{token}" if names_ids else logprob.decoded_token
