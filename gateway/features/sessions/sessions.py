"""Keep the sessions of a gateway: find a request's session, hold its backend, and record who answered."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import orjson

from gateway.bounded_cache import BoundedCache
from gateway.calls import Call
from gateway.config.policy.model import Route, Target
from gateway.context import RequestContext, RequestState
from gateway.entries import Vector
from gateway.feature import Runtime
from gateway.features.sessions.hold import hold, next_state, outcome_of
from gateway.features.sessions.rule import SessionRule
from gateway.features.sessions.turns import (
    Session,
    SessionEffect,
    SessionState,
    Turn,
    identities,
    read_turn,
)
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.observability.metrics import Counter
from gateway.outcomes import Choice
from gateway.ports import Clock
from gateway.routing.backend_choice import NO_ROW
from gateway.routing.fallback import BackendAnswer
from gateway.routing.selection import Decision
from gateway.scores import ScoredPrompt, Scorer
from gateway.steps.route_ports import RoutePorts
from gateway.streams import StreamObserver, with_observer

LOG = logging.getLogger("nearhit.sessions")

MAX_SESSIONS = 10_000  # 2 kB each with the embedding of a topic
# Moves for these reasons are expected, or so many under load that a line for each would add load.
UNLOGGED = frozenset({"kept", "new", "unnamed", "idle", "topic", "harder", "returned", *map(str, Choice)}) - {
    str(Choice.FALLBACK)
}


class SessionTable:
    """`SessionTable` holds the sessions of all routes, the most recently used ones. It survives a new policy.

    Keys are digests with a secret of this process, so the table has no names of clients. The tenant and the owner of
    the request are part of each, so no client finds another's session.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._states: BoundedCache[bytes, SessionState] = BoundedCache(max_sessions)
        self._secret = os.urandom(32)

    def __len__(self) -> int:
        return len(self._states)

    def key(self, owner: Sequence[str], name: str, value: bytes) -> bytes:
        """Return the key of an identity. The texts of `owner` bind it to its client and route."""
        digest = blake2b(orjson.dumps([*owner, name, len(value)]), key=self._secret, digest_size=16)
        digest.update(value)
        return digest.digest()

    def find(self, keys: Sequence[bytes]) -> SessionState | None:
        """Return the state at the first key that has one. Looking does not count as a use."""
        return next((state for key in keys if (state := self._states.peek(key)) is not None), None)

    def keep(self, keys: Sequence[bytes], state: SessionState) -> None:
        for key in keys:
            self._states.put(key, state)


class SessionMetrics:
    """Counts the turns of sessions by their outcome."""

    def __init__(self) -> None:
        self.turns = Counter(
            "nearhit_session_turns_total",
            "Misses that belong to a session, by whether its backend was kept or why another one answered",
            ("route", "outcome"),
        )


class SessionChoice(RequestState):
    """The effect of the session on the choice of a backend, or None before it."""

    __slots__ = ("effect",)

    def __init__(self) -> None:
        self.effect: SessionEffect | None = None


class RouteSessions:
    """The sessions of one route."""

    def __init__(
        self, route: Route, rule: SessionRule, table: SessionTable, clock: Clock, metrics: SessionMetrics
    ) -> None:
        self._route = route
        self._rule = rule
        self._table = table
        self._clock = clock
        self._metrics = metrics

    def of(self, request: RequestContext, call: Call) -> SessionOfRequest:
        return SessionOfRequest(request, call, self.session_of(request, call), self._rule, self._clock)

    def session_of(self, request: RequestContext, call: Call) -> Session:
        """Return the request's view of its session. Nothing changes."""
        turn, owner = read_turn(call), self._owner(request)
        identity = next(identities(call, request.headers, self._rule.by, turn), None)
        topic, bound = _topic(request, call, turn), turn.delivers or call.dialect.continued(call) is not None
        if identity is None:
            return Session(turn, bound, topic=topic)
        name, *places = identity
        lookup_keys, store_keys = (tuple(self._table.key(owner, name, value) for value in values) for values in places)
        return Session(turn, bound, name, lookup_keys, store_keys, self._table.find(lookup_keys), topic)

    def record_answer(self, request: RequestContext, answered: BackendAnswer) -> Response:
        """Record who answered, and return the response. An error leaves the session as it is."""
        effect, response = request.of(SessionChoice).effect, answered.response
        if effect is None or response.status >= 400 or request.work.internal:
            return response
        session, backend, upstream = effect.session, answered.backend, request.calls.address
        outcome = outcome_of(effect, backend, upstream, answered.instead)
        if session.by is not None:
            self._metrics.turns.add(self._route.name, outcome)
        if session.state is not None and (outcome not in UNLOGGED or (session.bound and outcome != "kept")):
            self._log_move(request, session, session.state, backend, upstream, outcome)
        state = next_state(
            effect, self._route.target, backend, upstream, request.estimates.complexity, self._clock.monotonic()
        )
        self._table.keep(session.store_keys, state)
        call = request.call
        if call is None or not call.dialect.chains_answers or "previous_response_id" not in self._rule.by:
            return response
        return self._keep_by_answer(request, response, state)

    def _owner(self, request: RequestContext) -> tuple[str, str, str]:
        return request.client.tenant, request.owner, self._route.name

    def _keep_by_answer(self, request: RequestContext, response: Response, state: SessionState) -> Response:
        """Keep the state under the id of the answer, which the next request names."""

        def keep(data: bytes) -> bool:
            name = answer_id(data)
            if name is not None:
                self._table.keep([self._table.key(self._owner(request), "previous_response_id", name)], state)
            return name is not None

        body = response.body
        if isinstance(body, FullBody):
            keep(body.data)
            return response
        if not isinstance(body, EventStream):
            return response
        seen = False

        def observe(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal seen
            if not seen and events:
                seen = any(keep(event.data) for event in events)
            return events

        stream = EventStream(with_observer(body.events, StreamObserver(observe)))
        return Response(response.status, response.headers, stream, response.provenance)

    def _log_move(
        self,
        request: RequestContext,
        session: Session,
        state: SessionState,
        backend: str,
        upstream: str | None,
        reason: str,
    ) -> None:
        fields = {
            **request.log_fields,
            "route": self._route.name,
            "from": state.upstream if reason == "upstream" else state.backend,
            "to": upstream if reason == "upstream" else backend,
            "reason": reason,
            "tool_result": session.turn.delivers,
        }
        LOG.warning("a session has moved", extra={"fields": fields})


@dataclass(frozen=True, slots=True)
class SessionOfRequest:
    """The session of one request, as the choice of its backend uses it."""

    request: RequestContext
    call: Call
    session: Session
    rule: SessionRule
    clock: Clock

    def text_to_classify(self) -> str | None:
        """Return the text whose complexity counts, or None if the session's last score does.

        A tool loop asks no classifier: its question was classified when the loop began.
        """
        turn, state = self.session.turn, self.session.state
        if turn.delivers and state is not None and state.score is not None:
            return None
        return turn.replies_to if turn.replies_to is not None else self.call.question or self.call.prompt

    def score(
        self, own: Callable[[], ScoredPrompt], judge: Callable[[str], ScoredPrompt], *, classified: bool
    ) -> ScoredPrompt:
        """Score what the request answers.

        The result of a tool call has no difficulty of its own. A short reply counts as the harder of itself and the
        question before it.
        """
        turn = self.session.turn
        before = self._question_before(judge, classified=classified) if turn.short or turn.delivers else None
        if before is not None and (turn.delivers or before.by is Scorer.CLASSIFIER):
            return before
        scored = own()
        return scored if before is None or before.score <= scored.score else before

    def _question_before(self, judge: Callable[[str], ScoredPrompt], *, classified: bool) -> ScoredPrompt | None:
        """Score the last full question; where the body does not repeat it, take the session's last score.

        So does the result of a tool call on a route with a classifier, which is not asked again.
        """
        state, turn = self.session.state, self.session.turn
        last = None if state is None else state.score
        if turn.replies_to is not None and (last is None or not classified or not turn.delivers):
            return judge(turn.replies_to)
        return None if last is None else ScoredPrompt(last, NO_ROW, Scorer.SESSION)

    def hold(self, decision: Decision, target: Target, in_time: Callable[[str], bool]) -> Decision:
        """Return the decision as the session changes it, and set the upstream that the request prefers."""
        request, now = self.request, self.clock.monotonic()
        decision, effect = hold(decision, target, self.session, self.rule.idle, now, in_time)
        request.of(SessionChoice).effect = effect
        if self.session.bound:
            request.constraints = request.constraints._replace(pinned_upstream=effect.upstream)
        elif self.rule.hold == "upstream":
            request.constraints = request.constraints._replace(preferred_upstream=effect.upstream)
        return decision


class SessionRuntime(Runtime):
    """The sessions of a gateway. They survive a new policy."""

    def __init__(self, clock: Clock, metrics: SessionMetrics) -> None:
        self._table = SessionTable()
        self._clock = clock
        self._metrics = metrics

    def ports(self, route: Route) -> RoutePorts:
        rule = route.of(SessionRule)
        if rule is None:
            return RoutePorts()
        return RoutePorts(conversations=RouteSessions(route, rule, self._table, self._clock, self._metrics))


def answer_id(data: bytes) -> bytes | None:
    """Return the id of a response, from a whole body or an event's data, or None if there is none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    inner = value.get("response")
    identity = (inner if isinstance(inner, dict) else value).get("id")
    return identity.encode() if isinstance(identity, str) and (inner is not None or "output" in value) else None


def _topic(request: RequestContext, call: Call, turn: Turn) -> Vector | None:
    """Return the embedding of the question, if the route has made one.

    A reply, and a question that names nothing new, have no topic of their own.
    """
    embedding = request.embedding
    if embedding is None or embedding.partial or turn.short or turn.refers or turn.delivers or call.focus is None:
        return None
    return embedding.vector
