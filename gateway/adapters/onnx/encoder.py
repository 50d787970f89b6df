"""An embedding model as an int8 ONNX graph, on onnxruntime and tokenizers, without torch.

`nearhit model fetch` builds the default, all-MiniLM-L6-v2; `nearhit model build` builds others.

Measured with the default on a Xeon core with AMX, one thread, the forward pass only, best of 60. 13 tokens take 0.9
ms, 25 tokens 1.3 ms, 100 tokens 4.9 ms, 200 tokens 12 ms. Eight texts of 25 tokens in one pass take 1.03 ms each.
Tokenizing a short text takes 0.05 ms. RSS is 103 MB after loading, and at most 116 MB with any input
(docs/decisions/0033).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gateway.adapters.onnx.model_dir import open_session
from gateway.adapters.onnx.model_files import MODEL_FILE, TOKENIZER_FILE, load_manifest
from gateway.adapters.onnx.tokenizer import TextTokenizer
from gateway.entries import Embedding, Vector

OUTPUT = "sentence_embedding"
# Bounds on a common pass. A pass of n tokens takes some 0.5 ms plus 0.035 ms a token, so the constant part costs as
# much as 14 tokens.
MAX_BATCH = 8  # texts; beyond that the time per text does not fall
PASS_TOKENS = 256  # including padding; beyond that sharing gains nothing, and it bounds memory to that of one text
PADDING = 12  # padding tokens that one more text may add: fewer than a separate pass would cost
# Quantisations whose scales do not depend on the other texts of a pass: constants, or one scale for each token's block.
INDEPENDENT = ("static", "blockwise")


class OnnxEncoder:
    """`OnnxEncoder` implements `TextEncoder`. `model_dir` has the files that `nearhit model fetch` or `build` made;
    `threads` is for onnxruntime.

    The constructor raises `ModelMissing` or `ModelCorrupt`.
    """

    def __init__(self, model_dir: Path, threads: int = 1) -> None:
        manifest = load_manifest(model_dir)
        self.fingerprint = f"{manifest.model}/onnx-int8/{manifest.identity[:12]}"
        self._reader = TextTokenizer(model_dir / TOKENIZER_FILE, manifest.reading)
        self._session = open_session(model_dir / MODEL_FILE, threads)
        self.dimension = int(next(each.shape[-1] for each in self._session.get_outputs() if each.name == OUTPUT))
        # Dynamic scales cover a whole pass: in a common pass a text's vector would depend on the other texts.
        self._max_batch = MAX_BATCH if str(manifest.about.get("quantisation", "")).startswith(INDEPENDENT) else 1

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """Return one embedding per text, in order: vectors float32 (dimension,), unit length.

        `tokens` counts the tokens read.

        Texts of similar length share a pass (docs/decisions/0033). A text has no influence on the vector of another
        one, as the scales are constants or its own. Rounding next to padding changes a vector by 1e-6 at most.
        """
        read = [self._reader.read(text) for text in texts]
        vectors: dict[int, Vector] = {}
        for part in group_by_length([len(each.ids) for each in read], self._max_batch):
            vectors.update(zip(part, self.encode_ids([read[at].ids for at in part]), strict=True))
        return [Embedding(vectors[at], len(each.ids), each.truncated, each.unreadable) for at, each in enumerate(read)]

    def encode_ids(self, ids: Sequence[Sequence[int]]) -> list[Vector]:
        """Return the vectors of token ids, special tokens included, from one pass. They are copies, so that a reference
        to one does not keep all of them in memory."""
        shape = (len(ids), max(map(len, ids)))
        padded, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for at, row in enumerate(ids):
            padded[at, : len(row)], mask[at, : len(row)] = row, 1
        (vectors,) = self._session.run([OUTPUT], {"input_ids": padded, "attention_mask": mask})
        return [np.array(vector, np.float32) for vector in vectors]


def group_by_length(lengths: Sequence[int], max_batch: int = MAX_BATCH) -> Iterator[list[int]]:
    """Yield groups of texts that share a forward pass, by their numbers of tokens, shortest first. Pure."""
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
