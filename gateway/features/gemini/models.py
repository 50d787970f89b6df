"""Models as objects of Gemini's lists. Pure. https://ai.google.dev/api/models"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "models/"
METHODS = ["generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents"]


def neutral_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model of Gemini's list as OpenAI's object. Gemini's fields are kept next to OpenAI's."""
    name = str(model.get("name", ""))
    return {"id": name.rpartition(PREFIX)[2], "object": "model", "created": 0, "owned_by": "google", **model}


def gemini_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model as Gemini's object; OpenAI's fields are kept next to Gemini's."""
    if str(model.get("name", "")).startswith(PREFIX):
        return dict(model)
    name = str(model.get("id"))
    return {**model, "name": PREFIX + name, "displayName": name, "supportedGenerationMethods": METHODS}


def gemini_page(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all models as one page of Gemini's list."""
    return {"models": [gemini_model(model) for model in models]}
