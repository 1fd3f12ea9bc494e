"""The OpenAI-compatible server: a thread that owns the engine, and a FastAPI app in front of it."""
