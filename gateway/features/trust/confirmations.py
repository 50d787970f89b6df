"""Confirm stored answers: compare the fresh answer of an independent client with the one that it may not have yet."""

from __future__ import annotations

import logging
from dataclasses import replace

from gateway.cache.answer_comparer import AnswerComparer
from gateway.cache.threshold.wrong_hits import Label
from gateway.context import RequestContext
from gateway.entries import Entry
from gateway.errors import StoreUnavailable
from gateway.features.trust.askers import RouteAsker, Unconfirmed
from gateway.observability.metrics import Counter
from gateway.observability.telemetry import Telemetry
from gateway.ports import ResponseStore
from gateway.tasks import Background

LOG = logging.getLogger("nearhit.quality")

MAX_WAITING = 64  # comparisons that wait or run; beyond it a fresh answer confirms nothing


class TrustMetrics:
    """The metrics of the feature."""

    def __init__(self) -> None:
        self.confirmations = Counter(
            "nearhit_confirmations_total",
            "Fresh answers compared with a stored answer that is not confirmed yet, by outcome",
            ("route", "outcome"),
        )


class Confirmations:
    """`Confirmations` adds askers to entries, after the client has its answer."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._metrics = telemetry.include(TrustMetrics())
        self._background = Background(MAX_WAITING)

    def consider(
        self, request: RequestContext, fresh: Entry, comparisons: AnswerComparer, store: ResponseStore
    ) -> None:
        """Compare a stored fresh answer with the unconfirmed ones of its request, if it may confirm any of them.
        Lookups read `store`."""
        asker = request.asker
        if not isinstance(asker, RouteAsker) or asker.confirm is None:
            return
        for stored in request.of(Unconfirmed).entries:
            confirmed = asker.with_askers(stored, fresh.askers)
            if confirmed is not stored:
                confirmed = replace(confirmed, subjects=tuple(dict.fromkeys((*stored.subjects, *fresh.subjects))))
            if confirmed is stored or not stored.askers:  # not an independent client, or the writer is not known
                continue
            work = self._confirm(request, fresh, stored, confirmed, comparisons, store)
            if not self._background.start(f"{stored.fingerprint} {asker.name}", work):
                self._metrics.confirmations.add(request.route, "dropped")

    async def close(self) -> None:
        """Cancel the comparisons. The entries stay as they are."""
        await self._background.close()

    async def _confirm(
        self,
        request: RequestContext,
        fresh: Entry,
        stored: Entry,
        confirmed: Entry,
        comparisons: AnswerComparer,
        store: ResponseStore,
    ) -> None:
        assert request.call is not None  # its answer is stored
        label = await comparisons.label(request.call, stored, fresh) or Label.UNDECIDED
        is_other = label is Label.RIGHT and stored.question != fresh.question
        if is_other and await comparisons.is_frequent(request.route, request.call, fresh):
            label = Label.UNDECIDED  # many questions get this answer, so it does not tell that these two ask the same
        outcome = {Label.RIGHT: "agreed", Label.WRONG: "differed"}.get(label, "undecided")
        if label is Label.RIGHT:
            try:
                if not await store.amend(stored, confirmed):
                    outcome = "replaced"  # another answer has taken its place
            except StoreUnavailable as error:
                self._telemetry.store_errors.add()
                LOG.warning("a confirmation could not be stored", extra={"fields": {"error": str(error)}})
                outcome = "failed"
        # last, so that a reader of the counter finds all of the above done
        self._metrics.confirmations.add(request.route, outcome)
