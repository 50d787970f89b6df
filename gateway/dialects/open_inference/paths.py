"""The paths of the Open Inference Protocol, which name a model. Pure."""

from __future__ import annotations

import re

PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/(infer|generate|generate_stream)")
MODEL_PATH = re.compile(r"/v2/models/(?!stats$)([^/]+)((?:/versions/[^/]+)?(?:/.*)?)", re.DOTALL)


def with_model_name(path: str, model: str | None) -> str:
    """Return a path with the model's name at the backend, or None if the client's name stays."""
    match = MODEL_PATH.fullmatch(path)
    return path if match is None or model is None else f"/v2/models/{model}{match[2]}"


def model_of_path(path: str) -> str | None:
    """Return the model that a path names; None if it names none."""
    match = MODEL_PATH.fullmatch(path)
    return None if match is None else match[1]
