"""``/v1/models``: what is served, and what may draft for it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from outrider.config import SpeculativeConfig
from outrider.core.verifiers.table import RULES
from outrider.drafters.registry import info
from outrider.server import objects
from outrider.server.service import Service

_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}


def router(service: Service) -> APIRouter:
    """Its route."""
    routes = APIRouter()

    @routes.get("/v1/models", responses=objects.errors(401))
    async def models(salt: str = Depends(service.salt)) -> dict[str, Any]:
        """The model that is served, the loaded methods (the first is the default) and the model's own sampling."""
        return {"object": "list", "data": [served()]}

    @routes.get("/v1/models/{name:path}", responses=objects.errors(401, 404))
    async def model(name: str, salt: str = Depends(service.salt)) -> dict[str, Any]:
        """The same of one model."""
        service.check_model(name)
        return served()

    def served() -> dict[str, Any]:
        own = {"id": service.settings.model, "object": "model", "created": 0, "owned_by": "outrider"}
        more = {
            "max_model_len": service.llm.max_model_len,
            "chat": service.tokenizer.has_chat_template,
            "methods": [_method(config) for config in service.llm.methods.values()],
            "sampling": service.defaults.model_dump(include=_SAMPLING),
        }
        return {**own, **more}

    return routes


def _method(config: SpeculativeConfig) -> dict[str, Any]:
    return {
        "id": config.method,
        "summary": info(config.method).summary,
        "needs_prediction": info(config.method).needs_prediction,
        "needs_structure": info(config.method).needs_structure,
        "num_speculative_tokens": config.num_speculative_tokens,
        "verifier": config.verifier,
        "lossless": RULES[config.verifier].lossless,
    }
