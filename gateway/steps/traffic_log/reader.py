"""Reads a traffic log: a time window of the gateway's own log, or segments at a path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.config.units import parse_positive_duration
from gateway.errors import GatewayError
from gateway.steps.traffic_log.format import (
    SUFFIX,
    RecordedComparison,
    RecordedLabel,
    RecordedRequest,
    Row,
    SegmentHeading,
    SegmentInvalid,
    decode_batch,
    decode_heading,
    frames,
)
from gateway.steps.traffic_log.segments import segments_in

_LAST = re.compile(r"last-(\S+)")
MAX_REQUESTS = 250_000  # some 5 kB of memory each, with its replay
EXPECTED = "expected last-24h, or a segment or a folder of segments"


class TrafficUnreadable(GatewayError):
    """There is no traffic to replay. The message is one sentence."""

    status = 422
    kind = "traffic_unreadable"


@dataclass(frozen=True, slots=True)
class TrafficLog:
    """The recorded requests, labels and comparisons, in order of arrival, with the state that they depend on."""

    requests: tuple[RecordedRequest, ...]
    labels: tuple[RecordedLabel, ...]
    heading: SegmentHeading  # of the first segment
    notes: tuple[str, ...]  # one sentence for each part that could not be read
    comparisons: tuple[RecordedComparison, ...] = ()


def read_traffic(spec: str, folder: Path, now: float, limit: int = MAX_REQUESTS) -> TrafficLog:
    """Read recorded traffic. `spec` is a window of the log in `folder`, such as `last-24h`, or a path. `now` is the
    wall-clock time. Read at most `limit` requests; only a single segment may exceed it. Raise `TrafficUnreadable`."""
    last = _LAST.fullmatch(spec)
    since = 0.0 if last is None else now - _duration(last[1], spec)
    paths = _paths(folder if last else Path(spec), None if last else spec)
    return _read_segments(_recent(paths, since), since, spec, limit)


def _duration(text: str, spec: str) -> float:
    try:
        return parse_positive_duration(text)
    except ValueError as error:
        raise TrafficUnreadable(f"--traffic {spec}: {error}") from None


def _paths(where: Path, named: str | None) -> list[Path]:
    """Return the segments in `where`. `named` is the path as the operator gave it, or None for the gateway's own
    log."""
    if named is not None and where.is_file():
        return [where]
    try:
        segments = segments_in(where)
    except FileNotFoundError:
        segments = []
    except OSError as error:
        raise TrafficUnreadable(f"{where} cannot be read ({error.strerror}): {EXPECTED}") from None
    if not segments and named is None:
        raise TrafficUnreadable(
            f"no traffic was recorded in {where}, expected routes with record: on, and requests on them"
        )
    if not segments:
        raise TrafficUnreadable(f"there is no segment of a traffic log (*{SUFFIX}) in {where}: {EXPECTED}")
    return segments


def _recent(paths: list[Path], since: float) -> list[Path]:
    """Drop segments that ended before `since`. The last write is the end of a segment."""
    return [path for path in paths if path.stat().st_mtime >= since]


def _read_segments(paths: list[Path], since: float, spec: str, limit: int) -> TrafficLog:
    """Read the newest segments, as many as fit into `limit`."""
    headings: list[SegmentHeading] = []
    notes: list[str] = []
    requests: list[RecordedRequest] = []
    labels: list[RecordedLabel] = []
    comparisons: list[RecordedComparison] = []
    for path in reversed(paths):
        rows = [row for row in _rows(path, headings, notes) if row.at >= since]
        new_requests = [row for row in rows if isinstance(row, RecordedRequest)]
        if requests and len(requests) + len(new_requests) > limit:
            headings.pop()
            notes.append(f"only the last {len(requests)} requests of {spec} are replayed: more do not fit into memory")
            break
        requests += new_requests
        labels += (row for row in rows if isinstance(row, RecordedLabel))
        comparisons += (row for row in rows if isinstance(row, RecordedComparison))
    if not requests:
        detail = f" ({notes[0]})" if notes else ""
        raise TrafficUnreadable(f"no request was recorded in {spec}{detail}, expected routes with record: on")
    if len(spaces := {(heading.embedder, heading.dimension) for heading in headings}) > 1:
        names = " and ".join(sorted(name for name, _ in spaces))
        raise TrafficUnreadable(
            f"the traffic of {spec} was embedded by different models, {names}: their vectors cannot be compared, "
            "expected a window of one model"
        )
    requests.sort(key=lambda row: row.at)
    labels.sort(key=lambda row: row.at)
    comparisons.sort(key=lambda row: row.at)
    return TrafficLog(tuple(requests), tuple(labels), headings[-1], tuple(notes), tuple(comparisons))


def _rows(path: Path, headings: list[SegmentHeading], notes: list[str]) -> Iterator[Row]:
    """Yield the readable rows of one segment. Add a note about the rest."""
    try:
        data = path.read_bytes()
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({error.strerror})")
        return
    batches = frames(data)
    try:
        first = next(batches, None)
        if first is None:
            raise SegmentInvalid("is damaged at its beginning, or is not a segment of a traffic log")
        headings.append(decode_heading(first))
        for at, payload in enumerate(batches):
            if payload is None:
                notes.append(f"{path.name} is cut off or damaged after batch {at}: the rest is not replayed")
                return
            yield from decode_batch(payload)
    except SegmentInvalid as invalid:
        notes.append(f"{path.name} {invalid}: it is not replayed")
