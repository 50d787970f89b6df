"""Where a built embedding model lives, and the check that what lies there is what was built."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "all-MiniLM-L6-v2"
MODEL_FILE = "model.onnx"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
# How export.py makes it: a model whose manifest says otherwise is built again.
GRAPH = "written node by node, static scales"


class ModelMissing(Exception):
    """No built model where one was expected; the message says which command makes one."""


class ModelCorrupt(Exception):
    """A file of the model is not the one that was built; the message names it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says of a built model. `about` is all of it, as it was written."""

    model: str
    sha256: Mapping[str, str]  # file name -> hex digest
    about: Mapping[str, Any]


def default_model_dir() -> Path:
    """Inside the Python environment, so that it goes when the environment goes and needs no write access elsewhere."""
    return Path(sys.prefix) / "share" / "nearhit" / "models"


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_manifest(path: Path) -> Manifest:
    """The manifest of the model in the directory `path`, every file of which has been checked (23 MB: 20 ms).

    Raises `ModelMissing` when there is no manifest, `ModelCorrupt` when it, or a file that it lists, is not as built.
    """
    try:
        about = json.loads((path / MANIFEST_FILE).read_bytes())
        manifest = Manifest(about["model"], {name: f["sha256"] for name, f in about["files"].items()}, about)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelMissing(
            f"the embedding model {path.name} is not in {path.parent}{_suggestion(path.parent)}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelCorrupt(
            f"{path / MANIFEST_FILE} cannot be read ({type(error).__name__}): run `nearhit model fetch`"
        ) from None
    for name in (MODEL_FILE, TOKENIZER_FILE):
        _check(path / name, manifest.sha256.get(name))
    return manifest


def _suggestion(models: Path) -> str:
    """A name that was mistyped, or a folder without any model."""
    there = sorted(manifest.parent.name for manifest in models.glob(f"*/{MANIFEST_FILE}"))
    return f", which has {', '.join(there)}: name one of these" if there else ": run `nearhit model fetch`"


def _check(file: Path, expected: str | None) -> None:
    try:
        actual = sha256_of(file)
    except FileNotFoundError:
        raise ModelCorrupt(f"{file} is missing: run `nearhit model fetch`") from None
    if actual != expected:
        raise ModelCorrupt(
            f"{file} is not the file that was built (sha256 {actual}, expected {expected}): run `nearhit model fetch`"
        )
