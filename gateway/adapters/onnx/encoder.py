"""all-MiniLM-L6-v2 as an int8 ONNX graph: onnxruntime and tokenizers, without torch.

Measured on a Xeon core with AMX, one thread, the pass alone, best of 60: 13 tokens 0.9 ms, 25 tokens 1.3 ms, 100 tokens
4.9 ms, 200 tokens 12 ms; eight texts of 25 tokens in one pass 1.03 ms a text. Reading a short text takes 0.05 ms.
RSS 103 MB after loading and 116 at most, whatever is encoded (docs/decisions/0033, 0040).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gateway.adapters.onnx.model_dir import open_session
from gateway.adapters.onnx.model_files import MODEL_FILE, TOKENIZER_FILE, load_manifest
from gateway.adapters.onnx.tokenizer import TextTokenizer
from gateway.messages import Embedding, Vector

DIMENSION = 384
# What texts share a pass. One of n tokens takes some 0.5 ms and 0.035 ms a token: as much as 14 tokens for itself.
MAX_BATCH = 8  # texts; with more of them a pass takes no less for each
PASS_TOKENS = 256  # padding included: beyond it sharing gains nothing, and memory has the bound of one text
PADDING = 12  # tokens that one more text may bring: fewer than a pass of its own would cost


class OnnxEncoder:
    """Implements `TextEncoder`. `model_dir` holds what `nearhit model fetch` built; `threads` are onnxruntime's own.

    Raises `ModelMissing` or `ModelCorrupt` when made.
    """

    dimension = DIMENSION

    def __init__(self, model_dir: Path, threads: int = 1) -> None:
        manifest = load_manifest(model_dir)
        self.fingerprint = f"{manifest.model}/onnx-int8/{manifest.sha256[MODEL_FILE][:12]}"
        self._reader = TextTokenizer(model_dir / TOKENIZER_FILE)
        self._session = open_session(model_dir / MODEL_FILE, threads)
        # Dynamic scales are taken over a whole pass: in a shared one a text's vector would move with its company.
        self._max_batch = MAX_BATCH if str(manifest.about.get("quantisation", "")).startswith("static") else 1

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding a text, in order: vectors float32 (384,), unit length. `tokens` counts what was read.

        Texts of like lengths share a pass (docs/decisions/0040). None has a say in another one's vector: the scales are
        constants, and sums that are rounded otherwise beside padding move it by 1e-6 at most.
        """
        read = [self._reader.read(text) for text in texts]
        vectors: dict[int, Vector] = {}
        for part in group_by_length([len(each.ids) for each in read], self._max_batch):
            vectors.update(zip(part, self._vectors([read[at].ids for at in part]), strict=True))
        return [Embedding(vectors[at], len(each.ids), each.truncated, each.unreadable) for at, each in enumerate(read)]

    def _vectors(self, ids: Sequence[Sequence[int]]) -> list[Vector]:
        """Of one pass. Copies: whoever keeps one text's vector should not keep its company's."""
        shape = (len(ids), max(map(len, ids)))
        padded, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for at, row in enumerate(ids):
            padded[at, : len(row)], mask[at, : len(row)] = row, 1
        (vectors,) = self._session.run(["sentence_embedding"], {"input_ids": padded, "attention_mask": mask})
        return [np.array(vector, np.float32) for vector in vectors]


def group_by_length(lengths: Sequence[int], max_batch: int = MAX_BATCH) -> Iterator[list[int]]:
    """Which of so many texts, by their tokens, share a forward pass; shortest first. Pure."""
    part: list[int] = []
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        longest = lengths[at]
        if part and (
            len(part) == max_batch
            or (len(part) + 1) * longest > PASS_TOKENS
            or len(part) * (longest - lengths[part[-1]]) > PADDING
        ):
            yield part
            part = []
        part.append(at)
    if part:
        yield part
