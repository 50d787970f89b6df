"""all-MiniLM-L6-v2 as an int8 ONNX graph on onnxruntime, with the model's own tokenizer. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from gateway.messages import Embedding
from gateway.modelkit.files import GRAPH, TOKENIZER, load_manifest

MAX_TOKENS = 256  # what the model was trained to read
MAX_BATCH_TOKENS = 32 * 256  # of one forward pass, padding included: memory follows the largest batch


class OnnxEncoder:
    """One thread at a time. Raises `ModelMissing` or `ModelCorrupt` when it is made."""

    dimension = 384

    def __init__(self, directory: Path, threads: int = 1) -> None:
        manifest = load_manifest(directory)
        self.fingerprint = f"{directory.name}/onnx-int8/{manifest.files[GRAPH][:12]}"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # the arena keeps the largest batch's memory for ever
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(directory / GRAPH), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        encodings = self._tokenizer.encode_batch(list(texts))
        by_length = sorted(range(len(texts)), key=lambda i: len(encodings[i].ids))
        results: list[Embedding | None] = [None] * len(texts)
        for group in _groups(by_length, [len(encoding.ids) for encoding in encodings]):
            width = len(encodings[group[-1]].ids)
            ids = np.zeros((len(group), width), dtype=np.int64)
            mask = np.zeros((len(group), width), dtype=np.int64)
            for row, i in enumerate(group):
                ids[row, : len(encodings[i].ids)] = encodings[i].ids
                mask[row, : len(encodings[i].ids)] = 1
            (vectors,) = self._session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})
            for row, i in enumerate(group):
                encoding = encodings[i]
                results[i] = Embedding(vectors[row].copy(), len(encoding.ids), bool(encoding.overflowing))
        return [result for result in results if result is not None]


def _groups(by_length: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Cuts texts, sorted by length, into forward passes of bounded size."""
    groups: list[list[int]] = []
    for i in by_length:
        if groups and (len(groups[-1]) + 1) * lengths[i] <= MAX_BATCH_TOKENS:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups
