"""An embedding model on a Triton server: gateways without weights of their own share it, and its GPU.

Text becomes token ids here, and ids become vectors there: what the model read (`Embedding.truncated`, `unreadable`) is
known to the tokenizer alone, and ONNX and TensorRT graphs take ids. `deploy/triton/models/embedder` is such a model.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from gateway.adapters.text_reader import MAX_TOKENS, ReadText, TextReader
from gateway.errors import EmbedderUnavailable, StartFailed
from gateway.messages import Embedding
from gateway.modelkit.files import ModelMissing, sha256_of
from gateway.ports import Clock
from gateway.routing.breaker import Breaker

LOG = logging.getLogger("nearhit.embedder")
IDS, MASK, TYPES, VECTORS = "input_ids", "attention_mask", "token_type_ids", "sentence_embedding"
# Rows are padded to one of these, so that requests of several gateways have the same shape: Triton batches only those.
LENGTHS = (16, 32, 64, 128, MAX_TOKENS)
START_TIMEOUT_S = 10.0  # of each question at the start: a model that has not run yet takes seconds for its first pass
FAILURES, COOLDOWN_S, LONGEST_S = 3, 1.0, 30.0  # of the breaker
PROVE_S = 60.0  # how long vectors are trusted to be of the model of the start, without a failure in between
# What the model is recognised by: short texts from many subjects.
PROBES = (
    "How do I reset my password?", "What is the capital of France?", "Write a haiku about rain.",
    "Translate good morning into German.", "Is my parcel delayed?", "Explain recursion in Python.",
    "Cancel my subscription, please.", "The patient has a fever and a cough.", "12 * 7 + 3",
    "Who won the match last night?", "SELECT name FROM users WHERE id = 4", "Recommend a book on gardening.",
    "Summarise the contract in two sentences.", "My card was charged twice.", "How far away is the moon?",
    "What should I cook with rice and eggs?",
)  # fmt: skip
Matrix = NDArray[np.float32]


class TritonEncoder:
    """Implements `TextEncoder`. `url`: grpc:// or grpcs://HOST:PORT. `tokenizer`: the model's tokenizer.json.
    `timeout_s`: of one call of `encode`, seconds.

    Made, it asks the server for the model. Raises `ModelMissing` without the tokenizer, `StartFailed` where the server
    does not answer or the model is another than one of ids to sentence embeddings.
    """

    def __init__(self, url: str, model: str, tokenizer: Path, *, timeout_s: float, clock: Clock) -> None:
        scheme, _, address = url.partition("://")
        self._place = f"the embedding model '{model}' at {url}"
        self._model = model
        self._timeout_s = timeout_s
        self._clock = clock
        self._breaker = Breaker(FAILURES, COOLDOWN_S, LONGEST_S)
        self._told = False  # whether the log has it that the model does not answer
        try:
            self._reader, read_by = TextReader(tokenizer), sha256_of(tokenizer)
        except Exception as error:  # the library's own are bare exceptions, also where there is no file
            if not tokenizer.is_file():
                raise ModelMissing(f"the tokenizer {tokenizer} is missing: run `nearhit model fetch`") from None
            raise StartFailed(f"the tokenizer {tokenizer} cannot be read: {error}"[:300]) from None
        self._client = triton.InferenceServerClient(address, ssl=scheme == "grpcs")
        try:
            self._version, self._inputs, self._rows, platform = self._described()
            vectors = self._probed(START_TIMEOUT_S)
        except InferenceServerException as error:
            raise StartFailed(f"{self._place} does not answer: {_said(error)}") from None
        except EmbedderUnavailable as error:
            raise StartFailed(str(error)) from None
        self._proof, self._proved_at = likeness(vectors), clock.monotonic()
        self.dimension = vectors.shape[1]
        digest = hashlib.sha256(f"{read_by} {platform} {vectors.shape[1]} {self._proof}".encode()).hexdigest()
        self.fingerprint = f"{model}/triton-{self._version}/{digest[:12]}"

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding a text, in order: vectors float32 (dimension,), unit length. `tokens` counts what was read.

        Texts go in one request, or in as few as the model takes. Raises `EmbedderUnavailable`."""
        if not texts:
            return []
        now = self._clock.monotonic()
        if not self._breaker.allow(now):
            raise EmbedderUnavailable(f"{self._place} has failed {FAILURES} times in a row and is left alone")
        read = [self._reader.read(text) for text in texts]
        try:
            self._prove(now)
            vectors = self._asked(read, now + self._timeout_s)
        except (InferenceServerException, EmbedderUnavailable) as error:
            why = _said(error) if isinstance(error, InferenceServerException) else str(error)
            raise self._failed(why) from None
        self._breaker.succeeded()
        if self._told:
            LOG.info("the embedding model answers again", extra={"fields": {"model": self._model}})
            self._told = False
        return [
            Embedding(vector, len(each.ids), each.truncated, each.unreadable)
            for vector, each in zip(vectors, read, strict=True)
        ]

    def _failed(self, why: str) -> EmbedderUnavailable:
        now = self._clock.monotonic()
        self._breaker.failed(now)
        self._proved_at = now - PROVE_S  # a server that went away may come back with another model
        if not self._told:
            LOG.warning(
                "the embedding model does not answer: requests are exact hits or misses until it does",
                extra={"fields": {"model": self._model, "error": why}},
            )
            self._told = True
        return EmbedderUnavailable(why)

    def _described(self) -> tuple[str, frozenset[str], int, str]:
        """-> version, inputs, rows that a request may have, and the backend. Raises `StartFailed` for another kind of
        model, and what the client raises."""
        about = self._client.get_model_metadata(self._model, client_timeout=START_TIMEOUT_S)
        config = self._client.get_model_config(self._model, client_timeout=START_TIMEOUT_S).config
        inputs = {each.name: each.datatype for each in about.inputs}
        outputs = {each.name: each.datatype for each in about.outputs}
        fits = {IDS, MASK} <= inputs.keys() <= {IDS, MASK, TYPES} and set(inputs.values()) == {"INT64"}
        if not fits or outputs.get(VECTORS) != "FP32":
            raise StartFailed(
                f"{self._place} has inputs {_listed(inputs)} and outputs {_listed(outputs)}, expected INT64 "
                f"{IDS} and {MASK} ({TYPES} too, if need be) and FP32 {VECTORS}"
            )
        version = max(about.versions, key=int)  # Triton's versions are numbers
        return version, frozenset(inputs), config.max_batch_size, about.platform or config.backend

    def _prove(self, now: float) -> None:
        """That the model is still the one of the start: its name and version say nothing of its file."""
        if now - self._proved_at < PROVE_S:
            return
        if likeness(self._probed(self._timeout_s)) != self._proof:
            raise EmbedderUnavailable(
                f"{self._place} is another model than at the start, expected that one, or a restart of the gateway"
            )
        self._proved_at = now

    def _probed(self, timeout_s: float) -> Matrix:
        return self._asked([self._reader.read(text) for text in PROBES], self._clock.monotonic() + timeout_s)

    def _asked(self, read: Sequence[ReadText], deadline: float) -> Matrix:
        step = self._rows or len(read)
        return np.concatenate([self._infer(read[i : i + step], deadline) for i in range(0, len(read), step)])

    def _infer(self, read: Sequence[ReadText], deadline: float) -> Matrix:
        """Unit vectors, one a row. The version is pinned: another one is another model."""
        longest = max(len(each.ids) for each in read)
        given = {IDS: np.zeros((len(read), next(length for length in LENGTHS if length >= longest)), np.int64)}
        given[MASK], given[TYPES] = np.zeros_like(given[IDS]), np.zeros_like(given[IDS])
        for row, each in enumerate(read):
            given[IDS][row, : len(each.ids)] = each.ids
            given[MASK][row, : len(each.ids)] = 1
        inputs = []
        for name in sorted(self._inputs):
            tensor = triton.InferInput(name, given[name].shape, "INT64")
            tensor.set_data_from_numpy(given[name])
            inputs.append(tensor)
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise EmbedderUnavailable(f"{self._place} sent no answer within {self._timeout_s:g} s")
        result = self._client.infer(self._model, inputs, model_version=self._version, client_timeout=left)
        vectors = result.as_numpy(VECTORS)
        if vectors is None or vectors.ndim != 2 or vectors.shape[0] != len(read):
            raise EmbedderUnavailable(f"{self._place} sent no {VECTORS} of {len(read)} rows")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or not lengths.all():
            raise EmbedderUnavailable(f"{self._place} sent vectors that are not finite, or zero")
        return np.asarray(vectors / lengths, np.float32)


def likeness(vectors: Matrix) -> str:
    """What is the same for two computations of one model and differs between models: of each row the element that is
    largest in amount, and its sign.

    Float error of 1e-6 moves none unless two elements are as close as that. Of 16 rows of all-MiniLM-L6-v2 noise as
    large as int8 makes (cosine 0.993) moves some; tests/adapters/test_triton_encoder.py holds both.
    """
    largest = np.abs(vectors).argmax(axis=1)
    return " ".join(f"{'-' if row[at] < 0 else '+'}{at}" for row, at in zip(vectors, largest, strict=True))


def _said(error: InferenceServerException) -> str:
    """Its words name models, shapes and addresses; no text has left this process."""
    status = re.sub(r"^StatusCode\.", "", str(error.status() or ""))
    return f"{status} {error.message()}".strip()[:200]


def _listed(tensors: dict[str, str]) -> str:
    return ", ".join(f"{kind} {name}" for name, kind in sorted(tensors.items())) or "none"
