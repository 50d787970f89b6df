"""all-MiniLM-L6-v2 as an int8 ONNX graph: onnxruntime and tokenizers, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from gateway.messages import Embedding
from gateway.modelkit.files import MODEL_FILE, TOKENIZER_FILE, load_manifest

DIMENSION = 384
MAX_TOKENS = 256  # what the model was trained to read, [CLS] and [SEP] included

# More characters than 256 tokens ever need in ordinary text (English: about 1,100; deeply indented code: about 2,000).
# The tokenizer reads all that it is given: 0.3 ms for 1,000 characters, 1.2 ms for 4,000, 2.4 ms for 8,000.
MAX_CHARACTERS = 4096

# Padded tokens in one forward pass. Memory follows the largest pass, because attention is batch x heads x length^2:
# peak RSS 148 MB at 1,024 tokens (4 x 256), 181 at 2,048, 266 at 4,096, 422 at 8,192. Throughput does not:
# 56 texts/s of 256 tokens at 1,024, 52 at 2,048, 50 at 8,192 (one thread).
MAX_TOKENS_A_PASS = 1024


class OnnxEncoder:
    """Implements `TextEncoder`. `model_dir` holds what `nearhit model fetch` built; `threads` are onnxruntime's own.

    Raises `ModelMissing` or `ModelCorrupt` when made.
    """

    dimension = DIMENSION

    def __init__(self, model_dir: Path, threads: int = 1) -> None:
        manifest = load_manifest(model_dir)
        self.fingerprint = f"{manifest.model}/onnx-int8/{manifest.sha256[MODEL_FILE][:12]}"
        self._tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
        self._tokenizer.no_padding()  # the file says: pad everything to 128
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._session = _session(model_dir / MODEL_FILE, threads)

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding a text, in order: vectors float32 (384,), unit length. `tokens` counts what was read.

        A text's vector moves a little with the company it is encoded in, since activations are quantised per pass:
        cosine at least 0.98 with the vector it has alone.
        """
        read = [self._tokenizer.encode(text[:MAX_CHARACTERS]) for text in texts]
        found: dict[int, Embedding] = {}
        for places in _passes([len(encoding.ids) for encoding in read]):
            vectors = self._forward([read[i].ids for i in places])
            for i, vector in zip(places, vectors, strict=True):
                truncated = bool(read[i].overflowing) or len(texts[i]) > MAX_CHARACTERS
                # A copy: a row would keep the whole batch's array alive for as long as it is cached.
                found[i] = Embedding(vector.copy(), len(read[i].ids), truncated)
        return [found[i] for i in range(len(texts))]

    def _forward(self, rows: Sequence[Sequence[int]]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Sentence embeddings, (len(rows), 384)."""
        shape = (len(rows), max(map(len, rows)))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        (vectors,) = self._session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})
        return np.asarray(vectors, np.float32)


def _passes(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Groups positions into forward passes of at most `MAX_TOKENS_A_PASS` padded tokens, like lengths together."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and lengths[i] * (len(group) + 1) > MAX_TOKENS_A_PASS:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads would spin between operators and take the event loop's core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The arena stays on: without it every pass asks the kernel for its buffers anew, 40 instead of 56 texts/s of 256
    # tokens, and the peak is higher (217 instead of 148 MB). Patterns are for fixed shapes: off, 7 MB less at 8 x 256.
    options.enable_cpu_mem_arena = True
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
