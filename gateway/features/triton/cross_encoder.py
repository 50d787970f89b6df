"""The cross-encoder on a Triton server: in float32, with the embedder's word embeddings, as `nearhit model triton`
writes it. Several gateways share it and its GPU."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gateway.adapters.onnx.cross_encoder import ABOUT_FILE, UNREAD_LOGIT
from gateway.adapters.onnx.model_files import ModelMissing
from gateway.adapters.onnx.tokenizer import PairTokenizer, join_pair
from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.errors import StartupError
from gateway.features.triton.served_model import CachedMetadata, InputSpec, Matrix, MetadataCache, TokenRow, TritonModel
from gateway.ports import Clock

FORM = InputSpec(
    "cross-encoder",
    "logit",
    types=True,
    log=logging.getLogger("nearhit.semantic"),
    degraded_behaviour="the first opinion decides",
)
# Tolerance of a logit. Other kernels change it by 1e-5, half floats by hundredths. int8 activations, whose logits
# depend on the rest of the batch, change it by up to 0.45 on these pairs; other weights by more.
TOLERANCE = 0.15


class TritonCrossEncoder:
    """`TritonCrossEncoder` implements `CrossEncoder`. `url`, `model`, `clock` and `timeout_s` (per `score`) are as in
    `TritonModel`. `tokenizer` is the embedder's tokenizer.json. `data_dir` is as in `TritonEncoder`.

    The constructor asks the server for the model. It raises `ModelMissing` without the tokenizer, and `WeightsCorrupt`.
    It raises `StartupError` if the server does not answer and never has, or if its model does not match this gateway's
    weights.
    """

    threads = 8  # concurrent pairs, so that even those of one gateway can share a batch on the server

    def __init__(
        self,
        url: str,
        model: str,
        tokenizer: Path,
        *,
        timeout_s: float,
        clock: Clock,
        weights: Path,
        data_dir: Path | None = None,
    ) -> None:
        pairs, expected, self.digest = _reference(weights)
        if not tokenizer.is_file():
            raise ModelMissing(f"the tokenizer {tokenizer} is missing: run `nearhit model fetch`")
        self._reader = PairTokenizer(tokenizer)
        memory = None if data_dir is None else MetadataCache(data_dir, FORM.kind, url, model, self.digest)
        known_metadata = None if memory is None or (noted := memory.load()) is None else noted.described
        self._model = TritonModel(url, model, FORM, timeout_s=timeout_s, clock=clock, known_metadata=known_metadata)
        rows = [row for question, stored in pairs if (row := self._row(self._reader.ids(question), stored)) is not None]
        if not self._model.is_away:
            self._check(self._model.probe(rows), expected)
            if memory is not None:
                memory.save(CachedMetadata(self._model.described, self.digest, 1))
        self._model.verify_against(rows, lambda again: _max_deviation(again, expected) <= TOLERANCE)

    def _check(self, logits: Matrix, expected: Matrix) -> None:
        if not (off := _max_deviation(logits, expected)) <= TOLERANCE:
            raise StartupError(
                f"{self._model.description} does not match this gateway's weights (logits differ by "
                f"up to {off:.2f}, expected at most {TOLERANCE}): deploy the model that `nearhit model triton` writes"
            )

    def score(self, question: str, stored: Sequence[str]) -> list[float]:
        """Return one logit per stored question. Raise `ModelUnavailable`."""
        one = self._reader.ids(question)
        rows = [self._row(one, other) for other in stored]
        read = [row for row in rows if row is not None]
        logits = iter(self._model.infer(read)[:, 0].tolist() if read else ())
        return [UNREAD_LOGIT if row is None else next(logits) for row in rows]

    def _row(self, one: list[int] | None, stored: str) -> TokenRow | None:
        pair = join_pair(one, self._reader.ids(stored))
        return None if pair is None else TokenRow(pair[0].tolist(), pair[1].tolist())


def _max_deviation(logits: Matrix, expected: Matrix) -> float:
    """Return the largest difference; infinite if the shapes differ."""
    return float(np.abs(logits[:, 0] - expected).max()) if logits.shape == (len(expected), 1) else np.inf


def _reference(weights: Path) -> tuple[list[tuple[str, str]], Matrix, str]:
    """Return pairs, the model's logits for them, and its digest. The digest differs from that of the int8 model,
    because learning with one does not apply to the other."""
    try:
        about = json.loads((weights / ABOUT_FILE).read_bytes())
        served = [(str(question), str(stored), float(logit)) for question, stored, logit in about["served"]]
        digest = hashlib.sha256(f"{about['sha256']} float32".encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsCorrupt(f"{weights.name}/{ABOUT_FILE} is not valid: {error!r}") from None
    return [pair[:2] for pair in served], np.array([logit for _, _, logit in served], np.float32), digest
