"""The port of `sticky: prefix`: prefer the upstream that has the KV cache of a prompt's beginning."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from gateway.calls import Call
from gateway.upstream.load_balancer import LoadCandidate

MODULE = "gateway.features.prefixes.prefixes"


class WarmUpstreams(Protocol):
    """The upstreams of one backend that have parts of prompts in their KV cache."""

    def pick(
        self, call: Call, tenant: str, candidates: Sequence[LoadCandidate], preferred: str | None, *, remember: bool
    ) -> tuple[int, str] | None:
        """Return the place of the best candidate and the outcome as a word, or None for a prompt without a prefix.
        `preferred` is the address that the request prefers. With `remember`, later prompts with this prefix
        prefer the candidate."""


def open_prefixes() -> WarmUpstreams:
    """Return the upstreams of a backend before its first call."""
    prefixes: WarmUpstreams = import_module(MODULE).Prefixes()
    return prefixes
