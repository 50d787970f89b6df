"""Models as objects of Anthropic's lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def anthropic_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model as Anthropic's object; OpenAI's fields are kept next to Anthropic's."""
    if model.get("type") == "model":
        return dict(model)
    created = model.get("created")
    at = datetime.fromtimestamp(created if type(created) is int and 0 <= created < 2**33 else 0, UTC)
    named = {"display_name": model.get("id"), "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {"type": "model", **named, **model}


def anthropic_page(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all models as one page of Anthropic's list."""
    ids = [model.get("id") for model in models]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"data": [anthropic_model(model) for model in models], "has_more": False, **ends}
