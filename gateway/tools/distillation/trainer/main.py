"""What the build environment runs: reads `job.json` and `rows.jsonl`, writes graphs and `trained.json`."""

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
from .progress import shown
from .pruning import zeros_of
from .student import Student
from .training import Examples, Plan, train

AFTERWARDS = ("precision", "tensorrt")  # of the job: what becomes of the weights, whatever they are
NOBODY = -30.0  # the log of a probability that the teacher did not name


def run(given: Sequence[str]) -> None:
    """[FOLDER, "quiet" or "shown", the folder of a transformer or ""]. Raises OSError and whatever torch raises."""
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
    """-> what is to be reported."""
    with np.load(job["vectors"], allow_pickle=False) as file:  # first: a teacher takes so long that it may be replaced
        vectors = torch.from_numpy(file["vectors"].astype(np.float32))[:, : job["width"]]
    tokenizer = Tokenizer.from_file(job["tokenizer"])
    tokenizer.no_padding()
    tokenizer.enable_truncation(job["max_tokens"])
    ids = [encoding.ids for encoding in tokenizer.encode_batch([row["text"] for row in rows])]
    labels = torch.tensor([row["label"] for row in rows])
    about: dict[str, Any] = {}
    if transformer is None:
        teacher, told = _told(rows, len(job["labels"]))
    else:
        from .teacher_training import taught  # noqa: PLC0415 - transformers takes seconds to import

        teacher, about = taught(job, ids, labels, folder, transformer, quiet=quiet)
        told = torch.ones(len(rows), dtype=torch.bool)
    used = sorted({each for row in ids for each in row})
    place = {each: at for at, each in enumerate(used)}
    examples = Examples([[place[each] for each in row] for row in ids], labels, teacher, told)
    # Its matrices are small: a second thread costs more than it does, the most on a busy machine.
    torch.set_num_threads(1)
    # Tokens that no row has keep the vectors they came with: only the others are in training, a tenth or less.
    student = Student(vectors[used], job["hidden"], len(job["labels"]))
    plan = Plan(**job["plan"])
    with shown("training", plan.total, "epochs", quiet=quiet) as tell:
        begun = train(student, examples, plan, folder / "checkpoint.pt", digest, tell.epoch)
    zeros = zeros_of(student)
    whole = vectors.clone()
    whole[used] = student.table.detach()
    student.table = torch.nn.Parameter(whole)
    size = export(student, folder / "student.onnx", job["precision"])
    if job["tensorrt"]:  # which rounds by itself, and knows none of onnxruntime's int8 operators
        export(student, folder / "student-gpu.onnx", "fp32")
    return about | {"fp32_bytes": size, "resumed_after": begun, "zeros": zeros}


def _told(rows: Sequence[dict[str, Any]], labels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits of the teacher, of which rows it told any)"""
    logits = torch.full((len(rows), labels), NOBODY)
    for at, row in enumerate(rows):
        for label, odds in row["odds"] or ():
            logits[at, label] = max(NOBODY, float(np.log(max(odds, 1e-13))))
    return logits, torch.tensor([bool(row["odds"]) for row in rows])
