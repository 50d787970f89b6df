"""OpenAI's batches: parse the input file, and format batches for their clients. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.dialects.json_body import load_json
from gateway.dialects.targets import target_of
from gateway.features.jobs.store import BatchError, BatchFile, BatchLine, JobBatch, JobState, JobStatus, result_json
from gateway.features.jobs.submission import OWN, TARGET

MAX_FAULTS = 100

WINDOWS = {"24h": 86_400.0}

MAX_METADATA = 16

STEP_LINES, STEP_BYTES = 64, 64 * 1024  # of a file that are parsed in one step, which takes less than a millisecond


class BatchReader:
    """`BatchReader` parses the requests of a file in steps, because 50,000 lines at once block the event loop for 0.5
    s.

    Once it is `at_end`, it has either `lines`, in order, or `faults`.
    """

    def __init__(self, content: bytes, endpoint: str, max_lines: int) -> None:
        self._content = content
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._at = 0
        self._number = 0  # lines read
        self._seen: set[str] = set()
        self.at_end = False
        self.lines: list[BatchLine] = []
        self.faults: list[BatchError] = []

    def step(self) -> None:
        """Parse the next lines."""
        until = self._at + STEP_BYTES
        for _ in range(STEP_LINES):
            if self.at_end or self._at >= until:
                return
            self._read(self._next())

    def _next(self) -> bytes:
        self._number += 1
        end = self._content.find(b"\n", self._at)
        self.at_end = end < 0
        raw = self._content[self._at : None if end < 0 else end]
        self._at = end + 1
        return raw

    def _read(self, raw: bytes) -> None:
        if raw.strip():
            self._add(raw)
        if self.at_end and not self.lines and not self.faults:
            self.faults.append(BatchError(0, "the file has no requests", "empty_file"))
        if self.at_end and self.faults:
            self.lines.clear()

    def _add(self, raw: bytes) -> None:
        if len(self.lines) >= self._max_lines:
            message = f"the file has too many requests: expected at most {self._max_lines} (jobs.max_batch)"
            self.at_end, self.faults = True, [BatchError(0, message, "too_many_requests")]
            return
        parsed = _line(raw, self._number, self._endpoint, self._seen)
        if isinstance(parsed, BatchLine):
            self.lines.append(parsed)
            self._seen.add(parsed.custom_id)
        elif len(self.faults) < MAX_FAULTS:
            self.faults.append(parsed)


def _line(raw: bytes, number: int, endpoint: str, seen: set[str]) -> BatchLine | BatchError:
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return BatchError(number, "this line is not valid JSON", "invalid_json_line")
    if not isinstance(fields, dict):
        return BatchError(number, "this line is not an object: expected one with custom_id, method, url and body")
    custom_id, body = fields.get("custom_id"), fields.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= 512:
        return BatchError(number, "custom_id: expected a string of 1 to 512 characters")
    if custom_id in seen:
        return BatchError(number, "custom_id: expected an id that no other line has", "duplicate_custom_id")
    if fields.get("method") != "POST":
        return BatchError(number, "method: expected POST", "invalid_method")
    url = fields.get("url")
    if not isinstance(url, str) or target_of("POST", url) != (endpoint, ""):
        return BatchError(number, f"url: expected {endpoint}, the endpoint of the batch", "mismatched_endpoint")
    if not isinstance(body, dict):
        return BatchError(number, "body: expected an object")
    # `load_json` keeps integers of any length.
    return BatchLine(number, custom_id, orjson.dumps(load_json(raw)["body"]))


def endpoint_of(value: object) -> str | None:
    """Return the endpoint of a batch; None if a batch may not have it."""
    if not isinstance(value, str) or not TARGET.fullmatch(value) or "?" in value or "#" in value:
        return None
    path = target_of("POST", value).path
    return None if OWN.fullmatch(path) else path


def metadata_of(value: object) -> Mapping[str, str] | None:
    """Return the metadata; None unless it fits OpenAI's limits: up to 16 pairs of strings."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_METADATA:
        return None
    is_valid = all(
        isinstance(k, str) and isinstance(v, str) and len(k) <= 64 and len(v) <= 512 for k, v in value.items()
    )
    return value if is_valid else None


def key_of(batch: str, line: int) -> str:
    """Return the idempotency key of a line's job, so that there is one job however often the line is submitted.

    It contains a space, so it cannot equal a client's key.
    """
    return f"{batch} {line}"


def output_of(batch: str, line: BatchLine, job_state: JobState | None, reason: str = "") -> tuple[bytes, bool]:
    """Return (a line of the output or error file, whether it belongs to the output file).

    `reason` says why there is no job.
    """
    name = hashlib.sha256(f"{batch}/{line.number}".encode()).hexdigest()[:32]
    output: dict[str, Any] = {"id": f"batch_req_{name}", "custom_id": line.custom_id, "response": None, "error": None}
    if job_state is not None and job_state.result is not None:
        view = result_json(job_state.result)
        output["response"] = {"status_code": view["status"], "request_id": job_state.id, "body": view["body"]}
    if job_state is None or job_state.result is None:
        code = reason or (
            "batch_cancelled" if job_state and job_state.status is JobStatus.CANCELLED else "request_failed"
        )
        message = (job_state.error if job_state else "") or "this request got no response"
        output["error"] = {"code": code, "message": message}
    return orjson.dumps(output), job_state is not None and job_state.status is JobStatus.COMPLETED


def file_id(batch: str, kind: str) -> str:
    """Return the id of a batch's own file, which is the same whichever gateway writes it."""
    return "file-" + hashlib.sha256(f"{batch}/{kind}".encode()).hexdigest()[:32]


def file_json(file: BatchFile) -> dict[str, Any]:
    """Return OpenAI's file object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created),
        "expires_at": int(file.expires),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def batch_json(batch: JobBatch, completed: int, failed: int) -> dict[str, Any]:
    """Return OpenAI's batch object. `completed` and `failed` count the requests so far."""
    faults = [{"code": f.code, "line": f.line or None, "message": f.message, "param": None} for f in batch.faults]
    names = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    times = {f"{name}_at": int(batch.times[name]) if name in batch.times else None for name in names}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": faults} if faults else None,
        "input_file_id": batch.input_file,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file or None,
        "error_file_id": batch.error_file or None,
        "created_at": int(batch.created),
        "expires_at": int(batch.expires),
        "request_counts": {"total": batch.total, "completed": completed, "failed": failed},
        "metadata": dict(batch.metadata) or None,
        **times,
    }
