"""A model of token ids on a Triton server: inference, availability, and the check that it is still the model of the
start."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from gateway.adapters.triton_channel import OPTIONS
from gateway.circuit_breaker import CircuitBreaker
from gateway.errors import ModelUnavailable, StartupError
from gateway.files import replace_file
from gateway.ports import Clock

# Cached metadata of models on Triton, so that a gateway can start while the server is away.
LOG = logging.getLogger("nearhit")

FOLDER = "served-models"


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The server's metadata of a model. `inputs` are names. `rows` is the maximum per request, or 0 without a limit.
    `platform` is the platform, or the backend."""

    version: str
    inputs: tuple[str, ...]
    rows: int
    platform: str


@dataclass(frozen=True, slots=True)
class CachedMetadata:
    """Cached metadata. `proof` is the fingerprint of the model's answers to its probes, `dimension` that of its
    rows."""

    described: ModelMetadata
    proof: str
    dimension: int


class MetadataCache:
    """The metadata cache of one model: a file in `data_dir` per address, name and other properties that identify the
    model."""

    def __init__(self, data_dir: Path, *decisive: str) -> None:
        name = hashlib.sha256("\n".join(decisive).encode()).hexdigest()[:16]
        self._file = data_dir / FOLDER / f"{name}.json"

    def load(self) -> CachedMetadata | None:
        """Return the cached metadata, or None if there is none or it is unreadable."""
        try:
            proof_file = json.loads(self._file.read_bytes())
            described = proof_file["described"]
            return CachedMetadata(
                ModelMetadata(
                    str(described["version"]),
                    _names(described["inputs"]),
                    int(described["rows"]),
                    str(described["platform"]),
                ),
                str(proof_file["proof"]),
                int(proof_file["dimension"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            LOG.warning(
                "the cached metadata of a served model cannot be read", extra={"fields": _fields(self._file, error)}
            )
            return None

    def save(self, what: CachedMetadata) -> None:
        """Save the metadata. If the folder is not writable, the next start needs the server."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self._file, json.dumps(asdict(what)).encode(), self._file.with_suffix(".new"), 0o600)
        except OSError as error:
            LOG.warning("the metadata of a served model cannot be cached", extra={"fields": _fields(self._file, error)})


def _names(given: Sequence[object]) -> tuple[str, ...]:
    return tuple(sorted(map(str, given)))


def _fields(file: Path, error: Exception) -> dict[str, object]:
    return {"file": file.name, "error": type(error).__name__}


IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"

# Rows are padded to one of these lengths, so that requests of several gateways have the same shape: Triton batches only
# those.
LENGTHS = (16, 32, 64, 128, 256)

START_TIMEOUT_S = 10.0  # per call at the start: a cold model takes seconds for its first pass

FAILURES, COOLDOWN_S, LONGEST_S = 3, 1.0, 30.0  # the breaker's parameters

VERIFY_INTERVAL_S = 60.0  # seconds for which the model counts as verified, without a failure in between

Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row of tokens. `types` has one per token, for models that take them. It is empty if all are 0."""

    ids: Sequence[int]
    types: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The requirements on a model. `kind` is its name in messages, such as "embedding model". The `output` is float32,
    with one row per row of the request. `degraded_behaviour` is the effect on requests while it is away."""

    kind: str
    output: str
    types: bool  # whether it must take token_type_ids
    log: logging.Logger
    degraded_behaviour: str


class TritonModel:
    """`TritonModel` calls one model. Threads may share it, because the client's `infer` is thread-safe.

    The `url` is grpc:// or grpcs://HOST:PORT. `timeout_s` bounds each `infer`, in seconds. `postprocess` converts each
    answer, and may raise `ModelUnavailable`. `known_metadata` is that of the model at an earlier start.

    The constructor asks the server for the model. It raises `StartupError` if the server has a different one. If the
    server does not answer, it needs `known_metadata`, and otherwise raises `StartupError`. The model is then `is_away`
    until it answers with the same metadata.
    """

    def __init__(
        self,
        url: str,
        model: str,
        form: InputSpec,
        *,
        timeout_s: float,
        clock: Clock,
        known_metadata: ModelMetadata | None = None,
        postprocess: Callable[[Matrix], Matrix] = lambda given: given,
    ) -> None:
        scheme, _, address = url.partition("://")
        self.description = f"the {form.kind} '{model}' at {url}"
        self._model = model
        self._form = form
        self._timeout_s = timeout_s
        self._clock = clock
        self._postprocess = postprocess
        self._breaker = CircuitBreaker(FAILURES, COOLDOWN_S, LONGEST_S)
        self._state_lock = threading.Lock()  # protects the breaker and `_failure_logged`
        self._verify_lock = threading.Lock()
        self._failure_logged = False  # whether the log reports that the model does not answer
        self._probes: Sequence[TokenRow] = ()
        self._is_same_model: Callable[[Matrix], bool] = lambda _: True
        self._verified_at = clock.monotonic()
        self._client = triton.InferenceServerClient(address, ssl=scheme == "grpcs", channel_args=OPTIONS)
        self.is_away = False  # at the start
        try:
            self.described = self._fetch_metadata()
        except InferenceServerException as error:
            if known_metadata is None:
                raise StartupError(f"{self.description} does not answer: {_error_text(error)}") from None
            self.described, self.is_away = known_metadata, True
            self._failed(_error_text(error))

    def probe(self, probes: Sequence[TokenRow]) -> Matrix:
        """Return its answers at the start. Raise `StartupError`."""
        try:
            return self._infer_batches(probes, self._clock.monotonic() + START_TIMEOUT_S)
        except InferenceServerException as error:
            raise StartupError(f"{self.description} does not answer: {_error_text(error)}") from None
        except ModelUnavailable as error:
            raise StartupError(str(error)) from None

    def verify_against(self, probes: Sequence[TokenRow], same: Callable[[Matrix], bool]) -> None:
        """From now on use answers only while those to the probes match the model of the start."""
        self._probes, self._is_same_model = probes, same

    def infer(self, rows: Sequence[TokenRow]) -> Matrix:
        """Return one answer per row, in one request or in as few as the model's batch size allows. Raise
        `ModelUnavailable`."""
        now = self._clock.monotonic()
        with self._state_lock:
            if not self._breaker.allow(now):
                raise ModelUnavailable(
                    f"{self.description} has failed {FAILURES} times in a row and is not called for now"
                )
        try:
            self._verify(now)
            rows_out = self._infer_batches(rows, now + self._timeout_s)
        except (InferenceServerException, ModelUnavailable) as error:
            why = _error_text(error) if isinstance(error, InferenceServerException) else str(error)
            self._failed(why)
            raise ModelUnavailable(why) from None
        with self._state_lock:
            self._breaker.succeeded()
            back, self._failure_logged = self._failure_logged, False
        if back:
            self._form.log.info(f"the {self._form.kind} answers again", extra={"fields": {"model": self._model}})
        return rows_out

    def _failed(self, why: str) -> None:
        now = self._clock.monotonic()
        with self._state_lock:
            self._breaker.failed(now)
            self._verified_at = now - VERIFY_INTERVAL_S  # a server that returns may have another model
            was_logged, self._failure_logged = self._failure_logged, True
        if not was_logged:
            self._form.log.warning(
                f"the {self._form.kind} does not answer: {self._form.degraded_behaviour} until it does",
                extra={"fields": {"model": self._model, "error": why}},
            )

    def _fetch_metadata(self) -> ModelMetadata:
        """Return the metadata. Raise `StartupError` for another kind of model, and the client's errors."""
        about = self._client.get_model_metadata(self._model, client_timeout=START_TIMEOUT_S)
        config = self._client.get_model_config(self._model, client_timeout=START_TIMEOUT_S).config
        inputs = {each.name: each.datatype for each in about.inputs}
        outputs = {each.name: each.datatype for each in about.outputs}
        wanted = {IDS, MASK} | ({TYPES} if self._form.types else set())
        fits = wanted <= inputs.keys() <= {IDS, MASK, TYPES} and set(inputs.values()) == {"INT64"}
        if not fits or outputs.get(self._form.output) != "FP32":
            types = f", {MASK} and {TYPES}" if self._form.types else f" and {MASK} ({TYPES} too, if need be)"
            raise StartupError(
                f"{self.description} has inputs {_format_tensors(inputs)} and outputs {_format_tensors(outputs)}, "
                f"expected INT64 {IDS}{types} and FP32 {self._form.output}"
            )
        version = max(about.versions, key=int)  # Triton's versions are numbers
        return ModelMetadata(version, tuple(sorted(inputs)), config.max_batch_size, about.platform or config.backend)

    def _verify(self, now: float) -> None:
        """Check that the model is still that of the start: name and version do not identify its file."""
        with self._verify_lock:
            if now - self._verified_at < VERIFY_INTERVAL_S:
                return
            if not self._is_same_model(self._infer_batches(self._probes, self._clock.monotonic() + self._timeout_s)):
                raise ModelUnavailable(
                    f"{self.description} is another model than at the start: restore that one, or restart the gateway"
                )
            self._verified_at = now

    def _infer_batches(self, rows: Sequence[TokenRow], deadline: float) -> Matrix:
        step = self.described.rows or len(rows)
        outputs = np.concatenate([self._infer(rows[i : i + step], deadline) for i in range(0, len(rows), step)])
        if not np.isfinite(outputs).all():
            raise ModelUnavailable(f"{self.description} sent {self._form.output} that is not finite")
        return self._postprocess(outputs)

    def _infer(self, rows: Sequence[TokenRow], deadline: float) -> Matrix:
        """Run one request. The version is pinned, because another version is another model."""
        longest = max(len(each.ids) for each in rows)
        given = {IDS: np.zeros((len(rows), next(length for length in LENGTHS if length >= longest)), np.int64)}
        given[MASK], given[TYPES] = np.zeros_like(given[IDS]), np.zeros_like(given[IDS])
        for at, row in enumerate(rows):
            given[IDS][at, : len(row.ids)] = row.ids
            given[MASK][at, : len(row.ids)] = 1
            given[TYPES][at, : len(row.types)] = row.types
        inputs = []
        for name in self.described.inputs:
            tensor = triton.InferInput(name, given[name].shape, "INT64")
            tensor.set_data_from_numpy(given[name])
            inputs.append(tensor)
        remaining_s = deadline - self._clock.monotonic()
        if remaining_s <= 0:
            raise ModelUnavailable(f"{self.description} sent no answer within {self._timeout_s:g} s")
        result = self._client.infer(
            self._model, inputs, model_version=self.described.version, client_timeout=remaining_s
        )
        output = result.as_numpy(self._form.output)
        if output is None or output.ndim != 2 or output.shape[0] != len(rows):
            raise ModelUnavailable(f"{self.description} sent no {self._form.output} of {len(rows)} rows")
        return np.asarray(output, np.float32)


def _error_text(error: InferenceServerException) -> str:
    """Return the error's text. It names models, shapes and addresses, and contains no request text."""
    status = re.sub(r"^StatusCode\.", "", str(error.status() or ""))
    return f"{status} {error.message()}".strip()[:200]


def _format_tensors(tensors: dict[str, str]) -> str:
    return ", ".join(f"{kind} {name}" for name, kind in sorted(tensors.items())) or "none"
