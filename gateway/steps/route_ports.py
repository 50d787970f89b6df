"""The ports of a route: the decisions that its features make inside steps of the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gateway.context import RequestContext
from gateway.entries import Entry
from gateway.messages import Provenance, Response
from gateway.ports import ResponseStore
from gateway.prices import Tokens
from gateway.routing.trials import Trials

if TYPE_CHECKING:  # imported with the first route that compares questions
    from gateway.cache.answer_comparer import AnswerComparer
    from gateway.cache.placement import Placement
    from gateway.routing.classification import RouteClassifier
    from gateway.routing.conversations import Conversations

OnStored: TypeAlias = "Callable[[RequestContext, Entry, AnswerComparer, ResponseStore], None]"
"""Arguments: the request, its answer as stored, the comparisons of answers, the store that lookups read."""

Mirror: TypeAlias = "Callable[[RequestContext, Response, AnswerComparer], Response]"
"""Sees every response of a backend, and may observe its body on the way to the client."""

OnSpent = Callable[[RequestContext, str, Tokens, float, bool], None]
"""Is told the cost of each call of a backend. Arguments: the request, the backend, the tokens, the dollars, and whether
the call has a price."""

OnEnd = Callable[[RequestContext, Provenance | None], None]
"""Is told of each request that is over, with the origin of its answer, or None if its client left before one."""


@dataclass(frozen=True, slots=True)
class RoutePorts:
    """The implementations of the ports. With None the core decides alone."""

    placement: Placement | None = None  # where answers are stored, if their keys are known only with them
    trials: Trials | None = None  # tries the lightest backend first
    conversations: Conversations | None = None  # what earlier requests mean for the choice of a backend
    on_stored: OnStored | None = None  # what follows the storage of an answer
    classifier: Callable[[], RouteClassifier] | None = None  # opens what scores requests instead of the gateway
    mirror: Mirror | None = None  # sees the responses of backends
    on_spent: OnSpent | None = None  # books the costs of calls
