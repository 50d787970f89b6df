"""all-MiniLM-L6-v2 as an int8 ONNX graph: onnxruntime and tokenizers, without torch.

Measured on an EPYC core with AVX512-VNNI, one thread, `encode` as a whole: a prompt of 13 tokens 0.9 ms (p50), of 256
tokens 17.7 ms; 980 short texts/s; loading 0.1 s; RSS 103 MB after loading and 116 at most, whatever is encoded. With
other work on the same two cores: 1.1 to 1.8 ms, 22 to 26 ms and 490 to 750 texts/s. That was the traced graph; the one
that is written node by node (modelkit/export.py) takes 0.7 times as long, on a Xeon with AMX: 0.89 ms instead of
1.29 for 13 tokens, 1.24 instead of 1.76 for 25 (best of 300, docs/decisions/0033).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gateway.adapters.onnx_session import open_session
from gateway.adapters.text_reader import TextReader
from gateway.messages import Embedding
from gateway.modelkit.files import MODEL_FILE, TOKENIZER_FILE, load_manifest

DIMENSION = 384


class OnnxEncoder:
    """Implements `TextEncoder`. `model_dir` holds what `nearhit model fetch` built; `threads` are onnxruntime's own.

    Raises `ModelMissing` or `ModelCorrupt` when made.
    """

    dimension = DIMENSION

    def __init__(self, model_dir: Path, threads: int = 1) -> None:
        manifest = load_manifest(model_dir)
        self.fingerprint = f"{manifest.model}/onnx-int8/{manifest.sha256[MODEL_FILE][:12]}"
        self._reader = TextReader(model_dir / TOKENIZER_FILE)
        self._session = open_session(model_dir / MODEL_FILE, threads)

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding a text, in order: vectors float32 (384,), unit length. `tokens` counts what was read.

        Each text has a forward pass of its own. The scale of int8 activations is taken over a whole pass, so in a
        shared one a text's vector moves with the company it is in: over 187 varied texts in batches of 32, cosine with
        the vector it has alone 0.991 on average and 0.944 at worst. A cache that compares vectors made at different
        times cannot have that, and at one thread a shared pass gains little: 1,315 texts/s instead of 1,072 at 16
        tokens, 321 instead of 300 at 64, 55 instead of 63 at 256. Memory, too, then has the bound of one text.
        """
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Embedding:
        read = self._reader.read(text)
        ids = np.array([read.ids], np.int64)
        (vectors,) = self._session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return Embedding(np.asarray(vectors[0], np.float32), len(read.ids), read.truncated, read.unreadable)
