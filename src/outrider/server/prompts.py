"""From a body to the tokens of its prompts."""

from __future__ import annotations

from typing import Any

from outrider.errors import RequestError
from outrider.llm import LLM
from outrider.server.conversation import Message, Templated
from outrider.server.schemas import ChatRequest, CompletionRequest
from outrider.target.tokenizer import Tokenizer


def chat_tokens(tokenizer: Tokenizer, messages: list[Message], body: Templated, special: bool) -> tuple[str, list[int]]:
    """Text and tokens of a conversation."""
    text = body.render(tokenizer, messages)
    return text, tokenizer.encode(text, add_special_tokens=special)


def of_chat(llm: LLM, body: ChatRequest) -> tuple[str, dict[str, Any]]:
    """The text of a chat, and the prompt that it makes. Raises RequestError as ``Templated.render`` does."""
    tokenizer = llm.get_tokenizer()
    text = body.render(tokenizer, body.messages)
    _check_length(llm, text, body.truncate_prompt_tokens)
    ids = tokenizer.encode(text, add_special_tokens=body.add_special_tokens)
    return text, _cut(llm, text, ids, body.truncate_prompt_tokens, body.max_completion_tokens or body.max_tokens)


def of_completion(llm: LLM, body: CompletionRequest, prompt: str | list[int]) -> dict[str, Any]:
    """One prompt of a completion."""
    text = prompt if isinstance(prompt, str) else None
    if isinstance(prompt, str):
        _check_length(llm, prompt, body.truncate_prompt_tokens)
        ids = llm.get_tokenizer().encode(prompt, add_special_tokens=body.add_special_tokens)
    else:
        ids = prompt
    return _cut(llm, text, ids, body.truncate_prompt_tokens, body.max_tokens)


def _check_length(llm: LLM, text: str, limit: int | None) -> None:
    """Refuse a text of which even the longest tokens would be more than the context, before it is tokenised."""
    longest = llm.get_tokenizer().longest_piece
    if limit is None and longest is not None and len(text) > llm.max_model_len * longest:
        raise RequestError(
            f"prompt of {len(text)} characters leaves no room in a context of {llm.max_model_len} tokens, however it "
            "is split: shorten it, or set truncate_prompt_tokens"
        )


def _cut(llm: LLM, text: str | None, ids: list[int], limit: int | None, answer: int | None) -> dict[str, Any]:
    """``limit``: tokens that count, from the end; -1: what an answer of ``answer`` tokens leaves of the context."""
    if limit == 0:
        raise RequestError("truncate_prompt_tokens=0 leaves no prompt: set 1 or more, or -1 for what fits")
    if limit == -1:
        limit = max(1, llm.max_model_len - (answer or 1))
    if limit is None or len(ids) <= limit:
        return {"prompt": text, "prompt_token_ids": ids}
    return {"prompt_token_ids": ids[-limit:]}
