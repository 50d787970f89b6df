"""Errors of the demo. Each message is one sentence for the person at the terminal: cause and remedy."""

from __future__ import annotations

from gateway.errors import StartupError


class DemoUnavailable(StartupError):
    """The demo's models cannot be built or served here."""


class TritonUnavailable(DemoUnavailable):
    """Triton cannot be installed or started on this machine."""


class ModelsUnavailable(DemoUnavailable):
    """The documentation that the models are built from is missing."""
