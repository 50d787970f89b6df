"""The port of a feature that ties the choice of a backend to the earlier requests of a conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.calls import Call
from gateway.config.policy.model import Target
from gateway.context import RequestContext
from gateway.messages import Response
from gateway.routing.fallback import BackendAnswer
from gateway.routing.selection import Decision
from gateway.scores import ScoredPrompt


class Conversation(Protocol):
    """The conversation of one request."""

    def text_to_classify(self) -> str | None:
        """Return the text whose complexity counts, or None if `score` will take the one of an earlier request."""

    def score(
        self, own: Callable[[], ScoredPrompt], judge: Callable[[str], ScoredPrompt], *, classified: bool
    ) -> ScoredPrompt:
        """Return the complexity of the request. `own` scores its own text, and `judge` an earlier one. If `classified`,
        a classifier has scored the text to classify."""

    def hold(self, decision: Decision, target: Target, in_time: Callable[[str], bool]) -> Decision:
        """Return the decision as the conversation changes it. `in_time` tells whether a backend is predicted to meet
        the request's budget."""


class Conversations(Protocol):
    """The conversations of one route."""

    def of(self, request: RequestContext, call: Call) -> Conversation:
        """Find the conversation of a request. Nothing changes."""

    def record_answer(self, request: RequestContext, answered: BackendAnswer) -> Response:
        """Record the backend that answered after a `hold`, and return the response, which may be observed."""
