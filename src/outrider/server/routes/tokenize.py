"""``/tokenize`` and ``/detokenize``: what a prompt is to the model, with vLLM's fields."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from starlette.concurrency import run_in_threadpool

from outrider.errors import RequestError
from outrider.server import objects, prompts
from outrider.server.schemas import DetokenizeRequest, TokenizeRequest
from outrider.server.service import Service

_ERRORS = objects.errors(400, 401, 404, 413)


def router(service: Service) -> APIRouter:
    """Their routes."""
    routes, tokenizer = APIRouter(), service.tokenizer

    @routes.post("/tokenize", response_model=objects.Tokens, responses=_ERRORS)
    async def tokenize(body: TokenizeRequest, salt: str = Depends(service.salt)) -> dict[str, Any]:
        """The tokens of a text or of a conversation, as a completion or a chat would get them."""
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("tokenize: give either prompt or messages")
        if body.messages is None:
            special = body.add_special_tokens is not False
            ids = await run_in_threadpool(tokenizer.encode, body.prompt, add_special_tokens=special)
        else:
            special = body.add_special_tokens is True
            _, ids = await run_in_threadpool(prompts.chat_tokens, tokenizer, body.messages, body, special)
        texts = [tokenizer.pieces[token] for token in ids] if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": service.llm.max_model_len, "tokens": ids, "token_strs": texts}

    @routes.post("/detokenize", response_model=objects.Text, responses=_ERRORS)
    async def detokenize(body: DetokenizeRequest, salt: str = Depends(service.salt)) -> dict[str, Any]:
        """The text of tokens, special ones included."""
        service.check_model(body.model)
        if any(token >= len(tokenizer) for token in body.tokens):
            raise RequestError(f"tokens: an id is outside the vocabulary of {len(tokenizer)}: remove it")
        text = await run_in_threadpool(tokenizer.decode, body.tokens, skip_special_tokens=False)
        return {"prompt": text}

    return routes
