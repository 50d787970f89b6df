"""The wire protocols that clients speak, in the order in which they are asked whether a request is theirs."""

from __future__ import annotations

from gateway.dialects.openai import OpenAI
from gateway.dialects.tfserving import TFServing
from gateway.dialects.torchserve import TorchServe
from gateway.ports import Dialect

# The first one's shape is that of errors where no dialect is known.
DIALECTS: tuple[Dialect, ...] = (OpenAI(), TFServing(), TorchServe())


def dialect_of(method: str, path: str) -> Dialect | None:
    """Whose request this is; None: nobody's, so that it passes through as it comes."""
    return next((dialect for dialect in DIALECTS if dialect.claims(method, path)), None)
