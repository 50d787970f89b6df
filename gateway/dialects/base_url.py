"""Base URLs as OpenAI's clients are given them: what speaks for a wrong one. Pure."""

from __future__ import annotations

import re

import orjson

EXPECTED = "the base URL that an OpenAI client is given, such as http://host:8000/v1"
_VERSION = re.compile(r".*/v\d+[a-z0-9.]*", re.ASCII | re.DOTALL)  # /v1, /openai/v1, /v1beta
_MODEL = re.compile(r"\b(?:models?|deployment)\b", re.IGNORECASE)  # the latter is Azure's word
_CODES = ("model_not_found", "DeploymentNotFound")


def ends_in_version(path: str) -> bool:
    """Of a URL, without the slash at its end."""
    return _VERSION.fullmatch(path) is not None


def about_a_model(body: bytes) -> bool:
    """Whether a 404 says that there is no such model, in one of the shapes in which OpenAI-compatible servers say it:
    then its path was right."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if isinstance(said, list) and said:  # Gemini's
        said = said[0]
    error = said.get("error", said) if isinstance(said, dict) else None
    if isinstance(error, dict):
        if error.get("param") == "model" or error.get("code") in _CODES:
            return True
        error = error.get("message", error.get("detail"))
    return isinstance(error, str) and _MODEL.search(error) is not None
