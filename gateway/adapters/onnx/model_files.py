"""The location of a built embedding model, and the check that its files are those that were built."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gateway.config.schema import EmbeddingModel

MODEL = "all-MiniLM-L6-v2"
MODEL_FILE = "model.onnx"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
STATIC_FILE = "static.npz"  # optional, see gateway/adapters/onnx/static_encoder.py
# The graph version of export.py. A model whose manifest differs is built again.
GRAPH = "written node by node, static scales"


class ModelMissing(Exception):
    """There is no built model. The message names the command that builds one."""


class ModelCorrupt(Exception):
    """A file of the model differs from the one that was built. The message names the file."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a model reads a text. The defaults are those of all-MiniLM-L6-v2."""

    prompt: str = ""  # in front of every text
    max_tokens: int = 256  # the training length, including special tokens
    unknown: str = "[UNK]"  # the token of what the vocabulary lacks; empty: it lacks nothing


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a built model's `manifest.json`. `about` is the whole object as written."""

    model: str
    sha256: Mapping[str, str]  # file name -> hex digest
    about: Mapping[str, Any]

    @property
    def reading(self) -> Reading:
        """How the model reads a text."""
        return Reading(**self.about.get("reads", {}))

    @property
    def identity(self) -> str:
        """The hex SHA-256 of all that decides the vectors.

        For the default model it is the digest of the graph, as the code decides how that model reads.
        """
        if "reads" not in self.about:
            return self.sha256[MODEL_FILE]
        parts = [self.sha256[MODEL_FILE], self.sha256[TOKENIZER_FILE], json.dumps(self.about["reads"], sort_keys=True)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def default_model_dir() -> Path:
    """Return the default folder. It is inside the Python environment, so that it is deleted with the environment and
    needs no other write access."""
    return Path(sys.prefix) / "share" / "nearhit" / "models"


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file. Raise OSError."""
    status = path.stat()
    return _sha256(path, (status.st_mtime_ns, status.st_ino, status.st_size))


@lru_cache(maxsize=16)  # encoder and static vectors verify the same files
def _sha256(path: Path, _version: tuple[int, int, int]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_manifest(path: Path) -> Manifest:
    """Return the manifest of the model in `path`, after all its files have been verified (23 MB: 20 ms).

    Raise `ModelMissing` if there is no manifest. Raise `ModelCorrupt` if it, or a file that it lists, differs from the
    build.
    """
    try:
        about = json.loads((path / MANIFEST_FILE).read_bytes())
        manifest = Manifest(about["model"], {name: f["sha256"] for name, f in about["files"].items()}, about)
        _ = manifest.reading
    except (FileNotFoundError, NotADirectoryError):
        raise ModelMissing(f"the embedding model {path.name} is not in {path.parent}{_suggestion(path)}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelCorrupt(f"{path / MANIFEST_FILE} cannot be read ({type(error).__name__}): {_remedy(path)}") from None
    for name in (MODEL_FILE, TOKENIZER_FILE):
        _check(path / name, manifest.sha256.get(name))
    return manifest


def reading_beside(tokenizer: Path) -> Reading:
    """Return how the model of this tokenizer.json reads, by the manifest in the same folder; the default without one.

    Raise ValueError or TypeError if the manifest cannot be read.
    """
    try:
        about = json.loads((tokenizer.parent / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        return Reading()
    return Manifest("", {}, about).reading


def _suggestion(path: Path) -> str:
    """Return a hint for a mistyped name, or for a folder without any model."""
    there = sorted(manifest.parent.name for manifest in path.parent.glob(f"*/{MANIFEST_FILE}"))
    return f", which has {', '.join(there)}: name one of these" if there else f": {_remedy(path)}"


def _remedy(path: Path) -> str:
    return f"run `nearhit model {'fetch' if path.name == MODEL else 'build'}`"


def _check(file: Path, expected: str | None) -> None:
    try:
        actual = sha256_of(file)
    except FileNotFoundError:
        raise ModelCorrupt(f"{file} is missing: {_remedy(file.parent)}") from None
    if actual != expected:
        raise ModelCorrupt(
            f"{file} is not the file that was built (sha256 {actual}, expected {expected}): {_remedy(file.parent)}"
        )


def model_dir_of(config: EmbeddingModel) -> Path:
    """Return the folder of a model."""
    return (config.model_dir or default_model_dir()) / config.model
