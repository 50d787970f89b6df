"""The error of an import."""

from __future__ import annotations

from gateway.errors import GatewayError


class ImportFailed(GatewayError):
    """The import wrote nothing. The message is one sentence for the operator."""
