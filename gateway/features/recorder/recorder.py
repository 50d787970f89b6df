"""Records requests on routes with `record` in a bounded buffer, which another thread writes in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gateway.cache.erasure import ErasureTarget, ErasureTraces
from gateway.cache.stored_parts import TRAFFIC, StoredPart, UnreachedPart
from gateway.config.policy.model import Policy, Route
from gateway.config.schema import TrafficConfig
from gateway.context import RequestContext
from gateway.feature import Runtime
from gateway.features.recorder.recorded_request import facts_of, header_names, passed_facts_of, recorded_of
from gateway.features.recorder.rule import RecordRule
from gateway.files import unowned_dirs
from gateway.messages import Provenance
from gateway.observability.metrics import Counter
from gateway.ports import Clock, Judgement
from gateway.request_fields import TrafficNotes
from gateway.scores import ComparedAnswer, TrafficFacts
from gateway.steps.recording import RecordedState, Recording
from gateway.steps.traffic_log.digests import Digest, digest_of, tenant_digests
from gateway.steps.traffic_log.format import (
    RecordedComparison,
    RecordedLabel,
    RecordedRequest,
    Row,
    SegmentHeading,
    vector_of,
)
from gateway.steps.traffic_log.segments import FOLDER, KEY_FILE, Segments, key_in
from gateway.tasks import run_in

LOG = logging.getLogger("nearhit.traffic")
OUTCOMES = ("recorded", "dropped")
MAX_ERASED = 64  # erasures that rows in flight are checked against


class RecorderMetrics:
    """The metrics of the feature."""

    def __init__(self) -> None:
        self.traffic = Counter(
            "nearhit_traffic_total",
            "Requests on routes with record, by whether they are in the traffic log",
            ("outcome",),
        )


class Unrecorded(Runtime):
    """The feature where no request is served: it records nothing."""

    def stored_parts(self) -> Sequence[StoredPart]:
        return (UnreachedPart(TRAFFIC, exists=False),)


class Recorder(Runtime):
    """Writes the traffic log. For use from one event loop. It creates no file or folder before a route records.
    `heading` returns the heading of a segment, given the names of the recorded headers. `unowned` returns the data
    directories that no process has any more."""

    def __init__(
        self,
        folder: Path,
        bounds: TrafficConfig,
        heading: Callable[[frozenset[str]], SegmentHeading],
        clock: Clock,
        metrics: RecorderMetrics,
        unowned: Callable[[], Sequence[Path]] = tuple,
    ) -> None:
        self._unowned = unowned
        self._folder = folder
        self._bounds = bounds
        self._heading = heading
        self._clock = clock
        self.metrics = metrics
        self._segments = Segments(folder, bounds, clock.wall)
        self._rows: list[Row] = []
        self._flush_due = asyncio.Event()
        self._policy = ""
        self._headers: frozenset[str] = frozenset()
        self._routes: frozenset[str] = frozenset()
        self._digest: Digest | None = None
        self._tenants: Digest | None = None
        self._failing = False
        self._heading_at_start: SegmentHeading | None = None
        self._write_lock = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None
        self._erased: tuple[ErasureTarget, ...] = ()

    part = TRAFFIC

    def stored_parts(self) -> Sequence[StoredPart]:
        return (self,)

    def in_force(self, policy: Policy) -> None:
        self._segments.mark_outdated()
        self._policy, self._headers = policy.hash, header_names(policy)
        self._routes = frozenset(route.name for route in policy.routes if route.of(RecordRule) is not None)
        if self._routes and self._digest is None:
            self._open()

    def _open(self) -> None:
        try:
            self._digest = digest_of(key_in(self._folder))
        except OSError as error:
            LOG.error(
                "traffic is not recorded: its folder cannot be written, expected a folder that the gateway owns",
                extra={"fields": {"folder": str(self._folder), "error": error.strerror}},
            )
            return
        self._tenants = tenant_digests(self._digest)
        for outcome in OUTCOMES:
            self.metrics.traffic.add(outcome, amount=0.0)

    # A request

    def facts(self, request: RequestContext, route: Route) -> TrafficFacts | None:
        """Return the facts of a request, before any decision, or None if it is not recorded."""
        rule = route.of(RecordRule)
        if rule is None or self._digest is None or self._tenants is None:
            return None
        if request.call is None:
            return passed_facts_of(request, rule, self._headers, self._digest, self._tenants)
        plain = route.semantic is not None and route.semantic.acceptance.min_similarity is not None
        return facts_of(request, request.call, rule, self._headers, self._digest, self._tenants, plain=plain)

    def on_end(
        self, traffic: TrafficNotes, request: RequestContext, provenance: Provenance, *, status: int, seconds: float
    ) -> None:
        """Record a request after its last byte was sent."""
        if self._digest is None:
            return
        if len(self._rows) >= self._bounds.max_buffered:
            self.metrics.traffic.add("dropped")
            return
        row = recorded_of(
            traffic,
            request,
            provenance,
            at=self._clock.wall() - seconds,
            policy=self._policy,
            status=status,
            seconds=seconds,
            digest=self._digest,
        )
        self._append(row)

    def label(self, route: str, judged: Judgement, label: str) -> None:
        """Record a label that tells whether a neighbour was right."""
        if route in self._routes and len(self._rows) < self._bounds.max_buffered:
            self._append(RecordedLabel(self._clock.wall(), route, judged.score, judged.opinion.probability, str(label)))

    def compared(
        self, request: RequestContext, source: str, reference: ComparedAnswer, candidate: ComparedAnswer, label: str
    ) -> None:
        """Record a comparison of two answers, whatever the share of the route: it tells nothing of the request."""
        if request.route in self._routes and len(self._rows) < self._bounds.max_buffered:
            self._append(
                RecordedComparison(
                    self._clock.wall(),
                    request.route,
                    request.model,
                    source,
                    request.estimates.complexity,
                    reference.backend,
                    candidate.backend,
                    str(label),
                    reference.tokens[:2],
                    candidate.tokens[:2],
                )
            )

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Remove the requests of the target, in the buffer and in all segments. Return their number. Rows that come
        later and began before are dropped when they are written. Raise `OSError`."""
        if not dry_run:
            self._erased = (*self._erased, target)[-MAX_ERASED:]
        async with self._write_lock:
            if self._writing is not None:
                await asyncio.shield(self._writing)
            waiting = [row for row in self._rows if _is_of(target, row, self._tenants)]
            if not dry_run:
                ids = set(map(id, waiting))
                self._rows = [row for row in self._rows if id(row) not in ids]
            written, damaged = await asyncio.to_thread(self._rewrite, target, dry_run=dry_run)
        if damaged:
            traces.notes.append(f"{damaged} segments of the traffic log have a part that cannot be read")
        for row in (*waiting, *written):
            if isinstance(row, RecordedRequest):
                traces.add(row.prompt, None if row.vector is None else vector_of(row.vector))
        return len(waiting) + len(written)

    def _rewrite(self, target: ErasureTarget, *, dry_run: bool) -> tuple[list[RecordedRequest], int]:
        """Remove the requests of the target from the segments of this process, and from those that no process has.
        Return them, and the number of damaged segments. Raise `OSError`."""
        folders: list[tuple[Segments, Digest | None]] = [(self._segments, self._tenants)]
        for data_dir in self._unowned():
            folder = data_dir / FOLDER
            if (folder / KEY_FILE).is_file():
                tenants = tenant_digests(digest_of(key_in(folder)))
                folders.append((Segments(folder, self._bounds, self._clock.wall), tenants))
        written, damaged = list[RecordedRequest](), 0
        for segments, digest in folders:
            requests, unreadable = segments.rewrite(partial(_is_of, target, tenants=digest), dry_run=dry_run)
            written, damaged = written + requests, damaged + unreadable
        return written, damaged

    def _append(self, row: Row) -> None:
        if not self._rows and self._segments.needs_segment():  # the state before the segment, not in the middle of it
            self._heading_at_start = self._heading(self._headers)
        self._rows.append(row)
        if 2 * len(self._rows) >= self._bounds.max_buffered:
            self._flush_due.set()

    # The log

    async def run(self) -> None:
        """Write batches until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._bounds.flush):
                    await self._flush_due.wait()
            except TimeoutError:
                pass
            self._flush_due.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write everything that was recorded so far."""
        async with self._write_lock:
            rows, self._rows = self._rows, []
            if self._erased:
                rows = [row for row in rows if not any(_is_of(target, row, self._tenants) for target in self._erased)]
            if rows:
                heading = self._heading_at_start or self._heading(self._headers)
                self._writing = asyncio.ensure_future(self._write(rows, heading))
            if self._writing is not None:  # also a write that a cancelled flush has begun
                await asyncio.shield(self._writing)

    async def _write(self, rows: list[Row], heading: SegmentHeading) -> None:
        requests = sum(isinstance(row, RecordedRequest) for row in rows)
        try:
            await asyncio.to_thread(self._segments.append, heading, rows)
        except OSError as error:
            self.metrics.traffic.add("dropped", amount=requests)
            if not self._failing:
                LOG.error("traffic could not be written", extra={"fields": {"error": error.strerror or str(error)}})
            self._failing = True
            return
        self._failing = False
        self.metrics.traffic.add("recorded", amount=requests)

    async def close(self) -> None:
        """Write the buffer, then close the file."""
        await self.flush()
        self._segments.close()


def _is_of(target: ErasureTarget, row: Row, tenants: Digest | None) -> bool:
    """Return whether a row belongs to the target. `tenants` is the digest of tenants in the row's log."""
    if not isinstance(row, RecordedRequest) or row.at > target.at:
        return False
    same = target.tenant is None or (tenants is not None and row.request.tenant == tenants(target.tenant))
    return same and target.names(row.subjects)


def open_recorder(recording: Recording, metrics: RecorderMetrics) -> Recorder:
    """Build the recorder, put it in its place, and write its batches until the stack of the place closes."""
    config, clock = recording.config, recording.clock
    recorder = Recorder(
        config.data_dir / FOLDER,
        config.traffic,
        lambda headers: _heading(recording.state, headers, clock.wall()),
        clock,
        metrics,
        partial(unowned_dirs, config.data_dir, config.server.workers),
    )
    recording.stack.push_async_callback(recorder.close)
    run_in(recording.stack, recorder.run())
    recording.log = recorder
    return recorder


def _heading(state: RecordedState | None, headers: frozenset[str], started: float) -> SegmentHeading:
    assert state is not None  # nothing is recorded before the gateway serves
    space = state.spaces.serving
    return SegmentHeading(
        started=started,
        embedder=space.embedder.fingerprint,
        dimension=space.embedder.dimension,
        verifier=space.verifier.basis,
        floor=space.verifier.floor,
        headers=tuple(sorted(headers)),
        controls={route: control.snapshot(evidence=False) for route, control in space.controls.all()},
        escalations={route: learning.snapshot() for route, learning in state.escalations.all()},
        basis=space.complexity.basis,
    )
