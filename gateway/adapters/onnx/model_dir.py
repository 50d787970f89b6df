"""A model folder as Hugging Face Optimum exports it: graph, tokenizer, and their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import onnxruntime
import orjson
from tokenizers import Tokenizer

from gateway.adapters.onnx.model_files import MODEL_FILE, TOKENIZER_FILE, ModelCorrupt, ModelMissing


# Models run on onnxruntime's CPU provider, with settings that leave the event loop its core.
def open_session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    """Open a model. A pass uses `threads` threads. Raise onnxruntime's error if the file is not a model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads would spin between operators and take the event loop's core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The arena stays on. Without it every pass allocates its buffers from the kernel: RSS 115 instead of 104-112 MB,
    # and 256 tokens take 16.3 instead of 15.9 ms (all-MiniLM-L6-v2). Memory patterns are for fixed shapes. Without
    # them, passes of 8 x 256 tokens take 7 MB less.
    options.enable_cpu_mem_arena = True
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


# The names that architectures use for their context length.
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")

MAX_CONTEXT = 2**20  # transformers writes 10^30 for an unknown length


class ModelDir:
    """`ModelDir` reads files of the folder on demand. It raises `ModelMissing` if graph or tokenizer is missing, and
    `ModelCorrupt` if a file is unreadable, with one sentence each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._require(MODEL_FILE)

    def session(self, threads: int) -> onnxruntime.InferenceSession:
        try:
            return open_session(self.path / MODEL_FILE, threads)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise ModelCorrupt(f"{self.path / MODEL_FILE} cannot be loaded ({type(error).__name__})") from None

    def tokenizer(self) -> Tokenizer:
        self._require(TOKENIZER_FILE)
        try:
            tokenizer = Tokenizer.from_file(str(self.path / TOKENIZER_FILE))
        except Exception as error:  # the library raises plain exceptions
            raise ModelCorrupt(f"{self.path / TOKENIZER_FILE} cannot be read ({str(error)[:100]})") from None
        tokenizer.no_padding()
        tokenizer.no_truncation()  # texts that are too long are reported, not truncated
        return tokenizer

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return self._json("config.json")

    @property
    def context(self) -> int | None:
        """The context length in tokens; None if no file states it."""
        value = [self._json("sentence_bert_config.json").get("max_seq_length")]
        value += [self.config.get(key) for key in CONTEXT_KEYS]
        value.append(self._json("tokenizer_config.json").get("model_max_length"))
        return next((int(n) for n in value if isinstance(n, int | float) and 0 < n <= MAX_CONTEXT), None)

    @property
    def labels(self) -> Sequence[str] | None:
        """The labels of a classifier, in the order of its outputs."""
        named = self.config.get("id2label")
        if not isinstance(named, dict) or sorted(named, key=_label_index) != [str(i) for i in range(len(named))]:
            return None
        return [str(named[str(i)]) for i in range(len(named))]

    def pooling(self) -> str:
        """Return how sentence-transformers pools token vectors: `mean` or `cls`."""
        return "cls" if self._json("1_Pooling/config.json").get("pooling_mode_cls_token") else "mean"

    def _require(self, name: str) -> None:
        if not (self.path / name).is_file():
            raise ModelMissing(f"{self.path} has no {name}, expected a folder exported by Hugging Face Optimum")

    def _json(self, name: str) -> Mapping[str, Any]:
        """Return the JSON object; empty if the file does not exist."""
        try:
            read = orjson.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, orjson.JSONDecodeError) as error:
            raise ModelCorrupt(f"{self.path / name} cannot be read ({type(error).__name__})") from None
        if not isinstance(read, dict):
            raise ModelCorrupt(f"{self.path / name} cannot be read, expected a JSON object")
        return read


def _label_index(key: str) -> int:
    return int(key) if key.isdecimal() else -1
