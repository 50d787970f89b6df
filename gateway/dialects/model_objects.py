"""Models in the neutral form, which is OpenAI's object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def neutral_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model of a backend's list as OpenAI's object. Anthropic's fields are kept next to OpenAI's.

    The list of one backend may have models of both forms.
    """
    if "object" in model or model.get("type") != "model":
        return dict(model)
    return {"object": "model", "created": _seconds(model.get("created_at")), "owned_by": "anthropic", **model}


def _seconds(text: Any) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (TypeError, ValueError):
        return 0
