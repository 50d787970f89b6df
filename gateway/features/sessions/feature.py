"""The declaration of the feature `session`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.feature import Core, Feature, Unsupported
from gateway.features.sessions.rule import SUMMARY, SessionForm
from gateway.features.sessions.sessions import SessionChoice, SessionMetrics, SessionRuntime
from gateway.features.sessions.turns import SessionEffect


class Sessions(Feature):
    """Sessions: a conversation keeps to its backend."""

    key = "session"
    after = "record"
    summary = SUMMARY
    form = SessionForm
    metrics = SessionMetrics
    stores = Unsupported("sessions are in memory, under digests with a secret of the process, and have no texts")

    def open(self, core: Core) -> SessionRuntime:
        return SessionRuntime(core.clock, core.telemetry.include(SessionMetrics()))

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("its line stands next to that of the backend")

    def explain_fields(self, request: RequestContext, route: Route) -> Mapping[str, Any]:
        effect = request.of(SessionChoice).effect
        return {} if effect is None else {"session": _in_words(effect)}

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit check finds the faults of its rule")

    def simulate(self) -> Unsupported:
        return Unsupported("sessions are not replayed: each request is routed alone")


def _in_words(effect: SessionEffect) -> str:
    """Return the session's part in the choice as text."""
    session = effect.session
    if session.by is None:
        return "none: the request names no session"
    words = [effect.reason, f"named by {session.by}"]
    if session.turn.delivers:
        words.append("the result of a tool call")
    elif session.turn.short:
        words.append("a short reply")
    if session.state is not None:
        words.append(f"last answered by {session.state.backend}")
    return ", ".join(words)


SESSIONS = Sessions()
