"""A folder as Hugging Face Optimum writes it: the graph, its tokenizer, and what is said of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import onnxruntime
import orjson
from tokenizers import Tokenizer

from gateway.adapters.onnx.model_files import MODEL_FILE, TOKENIZER_FILE, ModelCorrupt, ModelMissing


# How models run in this process: onnxruntime on the CPU, so that the event loop keeps its core.
def open_session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    """`threads`: of one pass. Raises what onnxruntime raises where the file is no model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads would spin between operators and take the event loop's core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The arena stays on: without it every pass asks the kernel for its buffers anew, RSS 115 instead of 104-112 MB and
    # 256 tokens 16.3 instead of 15.9 ms (all-MiniLM-L6-v2). Patterns are for fixed shapes: off, 7 MB less in passes of
    # 8 x 256 tokens.
    options.enable_cpu_mem_arena = True
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


# Where models say how much they read, by the name that each architecture has for it.
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")

MAX_CONTEXT = 2**20  # transformers writes 10^30 for "not known"


class ModelDir:
    """Reads what is asked for. Raises `ModelMissing` where graph or tokenizer is not there, `ModelCorrupt` where a file
    cannot be read, one sentence each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._require(MODEL_FILE)

    def session(self, threads: int) -> onnxruntime.InferenceSession:
        try:
            return open_session(self.path / MODEL_FILE, threads)
        except Exception as error:  # onnxruntime's exceptions share no base
            raise ModelCorrupt(f"{self.path / MODEL_FILE} cannot be loaded ({type(error).__name__})") from None

    def tokenizer(self) -> Tokenizer:
        self._require(TOKENIZER_FILE)
        try:
            tokenizer = Tokenizer.from_file(str(self.path / TOKENIZER_FILE))
        except Exception as error:  # it raises bare ones
            raise ModelCorrupt(f"{self.path / TOKENIZER_FILE} cannot be read ({str(error)[:100]})") from None
        tokenizer.no_padding()
        tokenizer.no_truncation()  # what is too long is said, not cut
        return tokenizer

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return self._json("config.json")

    @property
    def context(self) -> int | None:
        """Tokens that the model reads; None where nothing says it."""
        value = [self._json("sentence_bert_config.json").get("max_seq_length")]
        value += [self.config.get(key) for key in CONTEXT_KEYS]
        value.append(self._json("tokenizer_config.json").get("model_max_length"))
        return next((int(n) for n in value if isinstance(n, int | float) and 0 < n <= MAX_CONTEXT), None)

    @property
    def labels(self) -> Sequence[str] | None:
        """Of a classifier, by the place of its output."""
        named = self.config.get("id2label")
        if not isinstance(named, dict) or sorted(named, key=_label_index) != [str(i) for i in range(len(named))]:
            return None
        return [str(named[str(i)]) for i in range(len(named))]

    def pooling(self) -> str:
        """How sentence-transformers makes one vector of those of the tokens: `mean` or `cls`."""
        return "cls" if self._json("1_Pooling/config.json").get("pooling_mode_cls_token") else "mean"

    def _require(self, name: str) -> None:
        if not (self.path / name).is_file():
            raise ModelMissing(f"{self.path} has no {name}, expected a folder as Hugging Face Optimum exports it")

    def _json(self, name: str) -> Mapping[str, Any]:
        """Empty where the file is not there."""
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
