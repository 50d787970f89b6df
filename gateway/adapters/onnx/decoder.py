"""A decoder-only language model as an ONNX graph: tokens in, what the model gives for the next one out.

Graphs as Hugging Face Optimum exports them: `text-generation-with-past`, whose keys and values of earlier tokens go in
and come out, or `text-generation`, which reads the whole text anew for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime import OrtValue

from gateway.adapters.onnx.model_files import ModelCorrupt
from gateway.generation.sampling import Logits

IDS, MASK, PLACES, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
PAST, PRESENT = "past_key_values.", "present."
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}

Every = NDArray[np.floating[Any]]
"""(tokens, vocabulary)"""


@dataclass(slots=True)
class Memory:
    """What the model has read of one answer, and keeps of it."""

    ids: list[int] = field(default_factory=list)
    kept: list[OrtValue] = field(default_factory=list)


class Decoder:
    """Raises `ModelCorrupt` where the graph is of another kind. To be used from one thread."""

    def __init__(self, session: onnxruntime.InferenceSession, path: Path) -> None:
        self._session = session
        inputs = {each.name: each for each in session.get_inputs()}
        outputs = [each.name for each in session.get_outputs()]
        self._past = [name for name in inputs if name.startswith(PAST)]
        self._present = [name.replace(PAST, PRESENT) for name in self._past]
        strange = sorted(inputs.keys() - {IDS, MASK, PLACES, *self._past})
        if IDS not in inputs or LOGITS not in outputs or strange or not set(self._present) <= set(outputs):
            found = f"inputs {', '.join(inputs)[:200]}"
            raise ModelCorrupt(
                f"{path} is no decoder-only language model ({found}), expected one that Optimum exported for "
                "text-generation or text-generation-with-past"
            )
        self._mask, self._places = MASK in inputs, PLACES in inputs
        self._empty = [_empty(inputs[name], path) for name in self._past]

    @property
    def remembers(self) -> bool:
        """Whether it is given what it made of earlier tokens, rather than these anew."""
        return bool(self._past)

    def read(self, memory: Memory, ids: Sequence[int], options: onnxruntime.RunOptions) -> Logits:
        """Goes on by `ids`, one at least; -> what it gives for the token after them. `options` break it off."""
        return np.asarray(self.read_all(memory, ids, options)[-1], np.float32)

    def read_all(
        self, memory: Memory, ids: Sequence[int], options: onnxruntime.RunOptions
    ) -> NDArray[np.floating[Any]]:
        """As `read`; -> what it gives for the token after each that it read, (tokens, vocabulary)."""
        before = len(memory.ids)
        memory.ids.extend(ids)
        first = before if self.remembers else 0
        total = len(memory.ids)
        feed = {IDS: _row(memory.ids[first:])}
        if self._mask:
            feed[MASK] = OrtValue.ortvalue_from_numpy(np.ones((1, total), np.int64))
        if self._places:
            feed[PLACES] = _row(range(first, total))
        feed.update(zip(self._past, memory.kept or self._empty, strict=True))
        logits, *memory.kept = self._session.run_with_ort_values([LOGITS, *self._present], feed, options)
        every: Every = logits.numpy()[0]
        return every


def _row(numbers: Sequence[int]) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(np.array([numbers], np.int64))


def _empty(given: onnxruntime.NodeArg, path: Path) -> OrtValue:
    """Keys or values of no token: (1, heads, 0, width)."""
    shape = given.shape
    if len(shape) != 4 or not all(type(shape[axis]) is int for axis in (1, 3)) or given.type not in TYPES:
        raise ModelCorrupt(f"{path} has an input {given.name} of shape {shape}, expected (batch, heads, past, width)")
    return OrtValue.ortvalue_from_numpy(np.zeros((1, shape[1], 0, shape[3]), TYPES[given.type]))
