"""The cross-encoder on a Triton server: float32 there, with the words of the embedder inside, as `nearhit model triton`
writes it. Gateways that have no weights of their own share it, and its GPU.
"""

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
from gateway.adapters.triton.model import CachedMetadata, InputSpec, Matrix, MetadataCache, TokenRow, TritonModel
from gateway.errors import StartupError
from gateway.ports import Clock

FORM = InputSpec(
    "cross-encoder",
    "logit",
    types=True,
    log=logging.getLogger("nearhit.semantic"),
    degraded_behaviour="the first opinion decides",
)
# Of a logit. Other kernels move one by 1e-5, half floats by hundredths; int8 activations, whose logits depend on what
# else is in the batch, by up to 0.45 on these pairs, and other weights by more.
TOLERANCE = 0.15


class TritonCrossEncoder:
    """Implements `CrossEncoder`. `url`, `model`, `timeout_s` (of one `score`), `clock`: of `TritonModel`. `tokenizer`:
    the embedder's tokenizer.json.

    Made, it asks the server; `data_dir` as for `TritonEncoder`. Raises `ModelMissing` without the tokenizer,
    `WeightsCorrupt`, and `StartupError` where the server does not answer and never has, or has another model than the
    one that this gateway's weights belong to.
    """

    threads = 8  # so many pairs under way: those of one gateway, too, may share a batch there

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
        rows = [row for asked, stored in pairs if (row := self._row(self._reader.ids(asked), stored)) is not None]
        if not self._model.is_away:
            self._check(self._model.probe(rows), expected)
            if memory is not None:
                memory.save(CachedMetadata(self._model.described, self.digest, 1))
        self._model.verify_against(rows, lambda again: _max_deviation(again, expected) <= TOLERANCE)

    def _check(self, found: Matrix, expected: Matrix) -> None:
        if not (off := _max_deviation(found, expected)) <= TOLERANCE:
            raise StartupError(
                f"{self._model.description} is not the one that this gateway's weights belong to (logits differ by "
                f"up to {off:.2f}, expected at most {TOLERANCE}): put there what `nearhit model triton` writes"
            )

    def score(self, asked: str, stored: Sequence[str]) -> list[float]:
        """Raises `ModelUnavailable`."""
        one = self._reader.ids(asked)
        rows = [self._row(one, other) for other in stored]
        read = [row for row in rows if row is not None]
        found = iter(self._model.infer(read)[:, 0].tolist() if read else ())
        return [UNREAD_LOGIT if row is None else next(found) for row in rows]

    def _row(self, one: list[int] | None, stored: str) -> TokenRow | None:
        pair = join_pair(one, self._reader.ids(stored))
        return None if pair is None else TokenRow(pair[0].tolist(), pair[1].tolist())


def _max_deviation(found: Matrix, expected: Matrix) -> float:
    """The largest difference; infinite where the form is another one."""
    return float(np.abs(found[:, 0] - expected).max()) if found.shape == (len(expected), 1) else np.inf


def _reference(weights: Path) -> tuple[list[tuple[str, str]], Matrix, str]:
    """Pairs, what the model makes of them, and what names it: its scores are not those of the int8 one, so that what a
    route has learnt with one does not count for the other."""
    try:
        about = json.loads((weights / ABOUT_FILE).read_bytes())
        served = [(str(asked), str(stored), float(logit)) for asked, stored, logit in about["served"]]
        digest = hashlib.sha256(f"{about['sha256']} float32".encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsCorrupt(f"{weights.name}/{ABOUT_FILE} is not as trained: {error!r}") from None
    return [pair[:2] for pair in served], np.array([logit for _, _, logit in served], np.float32), digest
