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
from .progress import shown
from .teacher import CHUNK, embedded, fit, large
from .tuning import Tuning, tune


def taught(
    job: dict[str, Any], ids: Sequence[Sequence[int]], labels: torch.Tensor, folder: Path, transformer: Path, *,
    quiet: bool,
) -> tuple[torch.Tensor, dict[str, Any]]:  # fmt: skip
    """Train the teacher. Return its logits, (rows, labels), and its report."""
    model = large(transformer, len(job["labels"]))
    tuning = Tuning(**job["tuning"])
    made_of = [job["transformer_digest"], CHUNK, ids, labels.tolist()]
    kept = folder / f"taught-{_digest(made_of)[:12]}"
    with shown("embedding for the teacher", len(ids), "texts", quiet=quiet) as tell:
        vectors = embedded(model, ids, kept, tell.more)
    if not _given(kept / "head.pt", model.head):
        fit(model, vectors, labels)
        _keep(kept / "head.pt", model.head.state_dict())
    begun = 0
    if tuning.epochs:
        kept = folder / f"tuned-{_digest([made_of, job['tuning']])[:12]}"
        begun = _tuned(model, ids, labels, tuning, kept, quiet)
        with shown("running the teacher", len(ids), "texts", quiet=quiet) as tell:
            vectors = embedded(model, ids, kept, tell.more)
    with torch.no_grad():
        logits = model.head(vectors)
    size = export(model, folder / "teacher.onnx", job["precision"])
    return logits, {"teacher_fp32_bytes": size, "teacher_resumed_after": begun}


def _tuned(
    model: Any, ids: Sequence[Sequence[int]], labels: torch.Tensor, tuning: Tuning, kept: Path, quiet: bool
) -> int:
    """Tune the teacher and return the number of epochs that an earlier run had finished."""
    kept.mkdir(exist_ok=True)
    if _given(kept / "model.pt", model):
        return tuning.epochs
    with shown("tuning the teacher", tuning.epochs, "epochs", quiet=quiet) as tell:
        begun = tune(model, ids, labels, tuning, kept / "checkpoint.pt", kept.name, tell.epoch)
    _keep(kept / "model.pt", model.state_dict())
    (kept / "checkpoint.pt").unlink(missing_ok=True)  # the state of the optimiser is twice as large as the model
    return begun


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _given(file: Path, module: torch.nn.Module) -> bool:
    if not file.exists():
        return False
    module.load_state_dict(torch.load(file, weights_only=True))
    return True


def _keep(file: Path, state: dict[str, Any]) -> None:
    torch.save(state, beside := file.with_suffix(".part"))
    os.replace(beside, file)  # noqa: PTH105 - atomic
