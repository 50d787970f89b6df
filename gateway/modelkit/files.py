"""Where the embedding model lies on disk, and whether it is the one that was built."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "all-MiniLM-L6-v2"
GRAPH, TOKENIZER, MANIFEST = "model.onnx", "tokenizer.json", "manifest.json"


class ModelMissing(Exception):
    """There is no model; the message says how to get it."""


class ModelCorrupt(Exception):
    """A file of the model is not the one that was built."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a built model. `files` maps names to SHA-256."""

    directory: Path
    files: dict[str, str]
    facts: dict[str, Any]


def default_model_dir() -> Path:
    """Inside the environment that the gateway is installed in: it goes when that goes."""
    return Path(sys.prefix) / "share" / "nearhit" / "models"


def load_manifest(directory: Path) -> Manifest:
    """Checks every file. Raises `ModelMissing` or `ModelCorrupt`."""
    try:
        facts = json.loads((directory / MANIFEST).read_bytes())
        files = dict(facts["files"])
    except FileNotFoundError:
        raise ModelMissing(
            f"the embedding model {directory.name} is not in {directory.parent}: run `nearhit model fetch`"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ModelCorrupt(f"{directory / MANIFEST} is not a manifest: run `nearhit model fetch` again") from None
    for name, expected in files.items():
        actual = sha256(directory / name)
        if actual != expected:
            raise ModelCorrupt(
                f"{directory / name} has SHA-256 {actual[:12]}, expected {expected[:12]}: run `nearhit model fetch` again"
            )
    return Manifest(directory, files, facts)


def sha256(path: Path) -> str:
    """In hex; `missing` for a file that is not there."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return "missing"
