"""``/v1/models``: what is served."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from outrider.server.service import Service


def router(service: Service) -> APIRouter:
    """Its route."""
    routes = APIRouter()

    @routes.get("/v1/models")
    async def models(salt: str = Depends(service.salt)) -> dict[str, Any]:
        """The model that is served."""
        own = {"id": service.settings.model, "object": "model", "created": 0, "owned_by": "outrider"}
        return {"object": "list", "data": [{**own, "max_model_len": service.llm.max_model_len}]}

    return routes
