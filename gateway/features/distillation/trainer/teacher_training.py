"""Trains a teacher for data without probabilities: fits its head, tunes its layers, and returns its logits.

Results are saved in the work folder under the digest of their inputs. Other settings of a student reuse them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .export import export
from .progress import show_progress
from .teacher import CHUNK, embed_rows, fit, large
from .tuning import Tuning, tune


def train_teacher(
    job: dict[str, Any], ids: Sequence[Sequence[int]], labels: torch.Tensor, folder: Path, transformer: Path, *,
    quiet: bool,
) -> tuple[torch.Tensor, dict[str, Any]]:  # fmt: skip
    """Train the teacher. Return its logits, (rows, labels), and its report."""
    tuning = Tuning(**job["tuning"])
    model = large(transformer, len(job["labels"]), tuning.layers)
    made_of = [job["transformer_digest"], CHUNK, ids, labels.tolist(), tuning.layers]
    cache_folder = folder / f"taught-{_digest(made_of)[:12]}"
    with show_progress("embedding for the teacher", len(ids), "texts", quiet=quiet) as progress:
        vectors = embed_rows(model, ids, cache_folder, progress.more)
    if not _load_if_exists(cache_folder / "head.pt", model.head):
        fit(model, vectors, labels)
        _save(cache_folder / "head.pt", model.head.state_dict())
    begun = 0
    if tuning.epochs:
        cache_folder = folder / f"tuned-{_digest([made_of, job['tuning']])[:12]}"
        begun = _tune(model, ids, labels, tuning, cache_folder, quiet)
        with show_progress("running the teacher", len(ids), "texts", quiet=quiet) as progress:
            vectors = embed_rows(model, ids, cache_folder, progress.more)
    with torch.no_grad():
        logits = model.head(vectors)
    size = export(model, folder / "teacher.onnx", job["precision"])
    return logits, {"teacher_fp32_bytes": size, "teacher_resumed_after": begun}


def _tune(
    model: Any, ids: Sequence[Sequence[int]], labels: torch.Tensor, tuning: Tuning, cache_folder: Path, quiet: bool
) -> int:
    """Tune the teacher and return the number of epochs that an earlier run had finished."""
    cache_folder.mkdir(exist_ok=True)
    if _load_if_exists(cache_folder / "model.pt", model):
        return tuning.epochs
    with show_progress("tuning the teacher", tuning.epochs, "epochs", quiet=quiet) as progress:
        begun = tune(model, ids, labels, tuning, cache_folder / "checkpoint.pt", cache_folder.name, progress.epoch)
    _save(cache_folder / "model.pt", model.state_dict())
    (cache_folder / "checkpoint.pt").unlink(
        missing_ok=True
    )  # the state of the optimiser is twice as large as the model
    return begun


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _load_if_exists(file: Path, module: torch.nn.Module) -> bool:
    if not file.exists():
        return False
    module.load_state_dict(torch.load(file, weights_only=True))
    return True


def _save(file: Path, state: dict[str, Any]) -> None:
    torch.save(state, partial := file.with_suffix(".part"))
    os.replace(partial, file)  # noqa: PTH105 - atomic
