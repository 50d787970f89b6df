"""The entry point in the build environment: reads `job.json` and `rows.jsonl`, writes graphs and `trained.json`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from .export import export
from .progress import show_progress
from .pruning import drop_unused_tokens
from .student import Student
from .training import Examples, Plan, train

AFTERWARDS = ("precision", "tensorrt", "tokens")  # options of the export: they do not affect the weights
NOBODY = -30.0  # log probability of a label that the teacher did not name


def run(given: Sequence[str]) -> None:
    """Run a job with the arguments FOLDER, "quiet" or "shown", and the folder of a transformer or "".

    Raises OSError and errors of torch.
    """
    folder, how, transformer = given
    started = time.monotonic()
    job = json.loads((Path(folder) / "job.json").read_text())
    text = (Path(folder) / "rows.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    decides = {name: value for name, value in job.items() if name not in AFTERWARDS}
    digest = hashlib.sha256(f"{json.dumps(decides, sort_keys=True)} {text}".encode()).hexdigest()
    torch.manual_seed(job["plan"]["seed"])
    torch.set_num_threads(job["threads"])
    source = Path(transformer) if transformer else None
    about = classify(job, rows, digest, Path(folder), source, quiet=how == "quiet")
    about["seconds"] = round(time.monotonic() - started, 1)
    (Path(folder) / "trained.json").write_text(json.dumps(about))


def classify(
    job: dict[str, Any], rows: Sequence[dict[str, Any]], digest: str, folder: Path, transformer: Path | None, *,
    quiet: bool,
) -> dict[str, Any]:  # fmt: skip
    """Train a classifier, export its graphs, and return its report."""
    # Read the vectors first: the file may be replaced during the training of a teacher.
    with np.load(job["vectors"], allow_pickle=False) as file:
        vectors = torch.from_numpy(file["vectors"].astype(np.float32))[:, : job["width"]]
    tokenizer = Tokenizer.from_file(job["tokenizer"])
    tokenizer.no_padding()
    tokenizer.enable_truncation(job["max_tokens"])
    ids = [encoding.ids for encoding in tokenizer.encode_batch([row["text"] for row in rows])]
    labels = torch.tensor([row["label"] for row in rows])
    about: dict[str, Any] = {}
    if transformer is None:
        teacher, has_teacher = _teacher_logits(rows, len(job["labels"]))
    else:
        from .teacher_training import train_teacher  # noqa: PLC0415 - transformers takes seconds to import

        teacher, about = train_teacher(job, ids, labels, folder, transformer, quiet=quiet)
        has_teacher = torch.ones(len(rows), dtype=torch.bool)
    used = sorted({each for row in ids for each in row})
    place = {each: at for at, each in enumerate(used)}
    examples = Examples([[place[each] for each in row] for row in ids], labels, teacher, has_teacher)
    # The matrices of the student are small: a second thread costs more than it saves, most of all on a busy machine.
    torch.set_num_threads(1)
    # Only tokens that occur in a row are trained, a tenth or less. The others keep their vectors.
    student = Student(vectors[used], job["hidden"], len(job["labels"]))
    plan = Plan(**job["plan"])
    with show_progress("training", plan.total, "epochs", quiet=quiet) as progress:
        begun = train(student, examples, plan, folder / "checkpoint.pt", digest, progress.epoch)
    if job["tokens"] == "used":
        drop_unused_tokens(student, used, len(vectors))
    else:
        whole = vectors.clone()
        whole[used] = student.table.detach()
        student.table = torch.nn.Parameter(whole)
    size = export(student, folder / "student.onnx", job["precision"])
    if job["tensorrt"]:  # TensorRT rounds by itself, and has none of onnxruntime's int8 operators
        export(student, folder / "student-gpu.onnx", "fp32")
    about |= {"used_tokens": len(used), "hidden": student.hidden.out_features}
    return about | {"fp32_bytes": size, "resumed_after": begun}


def _teacher_logits(rows: Sequence[dict[str, Any]], labels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of the teacher, and a mask of the rows with probabilities."""
    logits = torch.full((len(rows), labels), NOBODY)
    for at, row in enumerate(rows):
        for label, odds in row["odds"] or ():
            logits[at, label] = max(NOBODY, float(np.log(max(odds, 1e-13))))
    return logits, torch.tensor([bool(row["odds"]) for row in rows])
