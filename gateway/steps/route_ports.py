"""The ports of a route: the decisions that its features make inside steps of the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.cache.answer_comparer import AnswerComparer
from gateway.cache.placement import Placement
from gateway.context import RequestContext
from gateway.entries import Entry
from gateway.messages import Response
from gateway.ports import ResponseStore
from gateway.routing.classification import RouteClassifier
from gateway.routing.conversations import Conversations
from gateway.routing.trials import Trials

OnStored = Callable[[RequestContext, Entry, AnswerComparer, ResponseStore], None]
"""Arguments: the request, its answer as stored, the comparisons of answers, the store that lookups read."""

Mirror = Callable[[RequestContext, Response, AnswerComparer], Response]
"""Sees every response of a backend, and may observe its body on the way to the client."""


@dataclass(frozen=True, slots=True)
class RoutePorts:
    """The implementations of the ports. With None the core decides alone."""

    placement: Placement | None = None  # where answers are stored, if their keys are known only with them
    trials: Trials | None = None  # tries the lightest backend first
    conversations: Conversations | None = None  # what earlier requests mean for the choice of a backend
    on_stored: OnStored | None = None  # what follows the storage of an answer
    classifier: Callable[[], RouteClassifier] | None = None  # opens what scores requests instead of the gateway
    mirror: Mirror | None = None  # sees the responses of backends
