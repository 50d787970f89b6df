"""Trained weights in two files, arrays and their description, which are checked against each other."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Tables = Mapping[str, npt.NDArray[Any]]


class WeightsCorrupt(Exception):
    """The weights differ from the trained ones. The message names the file and the fault."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    digest: str  # hex SHA-256 of the arrays
    metadata: Mapping[str, Any]
    tables: Tables


@dataclass(frozen=True, slots=True)
class WeightFiles:
    name: str  # NAME in `NAME.npz` and `NAME.json`
    what: str  # name of the weights in error messages

    @property
    def about_file(self) -> str:
        return f"{self.name}.json"

    @property
    def arrays_file(self) -> str:
        return f"{self.name}.npz"

    def load(self, directory: Path, make: Callable[[bytes, bytes], T]) -> T:
        """Return the result of `make`, called with the description and the arrays. Raise `WeightsCorrupt` if a file is
        unreadable, or if `make` raises ValueError, KeyError, TypeError or AttributeError."""
        try:
            about, arrays = ((directory / file).read_bytes() for file in (self.about_file, self.arrays_file))
        except OSError as error:
            raise WeightsCorrupt(f"{self.what} cannot be read: {error}") from None
        try:
            return make(about, arrays)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsCorrupt(f"{self.what} in {directory.name}/ are not valid: {error}") from None

    def unpack(self, about: bytes, arrays: bytes, features: tuple[str, ...]) -> LoadedWeights:
        """Verify and unpack the weights. `features` are those that this version computes. Raise ValueError, KeyError,
        TypeError or AttributeError."""
        metadata = json.loads(about)
        digest, file = hashlib.sha256(arrays).hexdigest(), self.arrays_file
        if digest != metadata["sha256"]:
            expected = str(metadata["sha256"])[:12]
            raise ValueError(f"{file} has sha256 {digest[:12]}..., {self.about_file} says {expected}...")
        with np.load(io.BytesIO(arrays), allow_pickle=False) as opened:
            tables = {name: opened[name] for name in opened.files}
        if tuple(str(name) for name in tables["names"]) != features:
            raise ValueError(f"{file} was trained on other features than this version computes")
        return LoadedWeights(digest, metadata, tables)
