"""What the build environment runs: reads `job.json` and `rows.jsonl`, writes `student.onnx` and `trained.json`."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from .export import export
from .student import Student
from .training import Examples, Plan, train

NOBODY = -30.0  # the log of a probability that the teacher did not name
LINES_EVERY_S = 5.0


def run(given: Sequence[str]) -> None:
    """[FOLDER, "quiet" or "shown", the folder of a transformer or ""]"""
    folder, how, transformer = given
    main(Path(folder), Path(transformer) if transformer else None, quiet=how == "quiet")


def main(folder: Path, transformer: Path | None, *, quiet: bool) -> None:
    """Raises OSError and whatever torch raises."""
    job = json.loads((folder / "job.json").read_text())
    text = (folder / "rows.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    torch.manual_seed(job["plan"]["seed"])
    torch.set_num_threads(job["threads"])
    started = time.monotonic()
    tokenizer = Tokenizer.from_file(job["tokenizer"])
    tokenizer.no_padding()
    tokenizer.enable_truncation(job["max_tokens"])
    ids = [encoding.ids for encoding in tokenizer.encode_batch([row["text"] for row in rows])]
    digest = hashlib.sha256(f"{json.dumps(job, sort_keys=True)} {text}".encode()).hexdigest()
    labels = torch.tensor([row["label"] for row in rows])
    teacher, told, about = _taught(job, rows, ids, labels, folder, transformer, quiet)
    with np.load(job["vectors"], allow_pickle=False) as file:
        vectors = torch.from_numpy(file["vectors"].astype(np.float32))[:, : job["width"]]
    used = sorted({each for row in ids for each in row})
    place = {each: at for at, each in enumerate(used)}
    examples = Examples([[place[each] for each in row] for row in ids], labels, teacher, told)
    # Tokens that no row has keep the vectors they came with: only the others are in training, a tenth or less.
    torch.set_num_threads(
        1
    )  # its matrices are small: a second thread costs more than it does, the most on a busy machine
    student = Student(vectors[used], job["hidden"], len(job["labels"]))
    plan = Plan(**job["plan"])
    with shown("training", plan.total, "epochs", quiet=quiet) as tell:
        begun = train(student, examples, plan, folder / "checkpoint.pt", digest, tell.epoch)
    whole = vectors.clone()
    whole[used] = student.table.detach()
    weights = torch.cat([each.detach().flatten() for each in student.parameters() if each.dim() > 1])
    zeros = float((weights == 0).float().mean())
    student.table = torch.nn.Parameter(whole)
    about |= {"fp32_bytes": export(student, folder / "student.onnx"), "resumed_after": begun, "zeros": zeros}
    about |= {"rows": len(rows), "tokens_seen": len(used), "seconds": round(time.monotonic() - started, 1)}
    (folder / "trained.json").write_text(json.dumps(about))


def _taught(
    job: dict[str, Any], rows: Sequence[dict[str, Any]], ids: Sequence[Sequence[int]], labels: torch.Tensor,
    folder: Path, transformer: Path | None, quiet: bool,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:  # fmt: skip
    """(logits of the teacher, whether it told any, what is to be reported of it)"""
    if transformer is None:
        logits = torch.full((len(rows), len(job["labels"])), NOBODY)
        for at, row in enumerate(rows):
            for label, odds in row["odds"] or ():
                logits[at, label] = max(NOBODY, float(np.log(max(odds, 1e-13))))
        return logits, torch.tensor([bool(row["odds"]) for row in rows]), {}
    from .teacher import CHUNK, embedded, fit, large  # noqa: PLC0415 - transformers takes seconds to import

    model = large(transformer, len(job["labels"]))
    of_texts = hashlib.sha256(json.dumps([job["transformer_digest"], CHUNK, ids, labels.tolist()]).encode()).hexdigest()
    kept = folder / f"taught-{of_texts[:12]}"
    with shown("embedding for the teacher", len(rows), "texts", quiet=quiet) as tell:
        vectors = embedded(model, ids, kept, tell.more)
    if (kept / "head.pt").exists():
        model.head.load_state_dict(torch.load(kept / "head.pt", weights_only=True))
    else:
        fit(model, vectors, labels)
        torch.save(model.head.state_dict(), kept / "head.part")
        (kept / "head.part").replace(kept / "head.pt")
    with torch.no_grad():
        logits = model.head(vectors)
    size = export(model, folder / "teacher.onnx")
    return logits, torch.ones(len(rows), dtype=torch.bool), {"teacher_fp32_bytes": size}


class Shown:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, what: str, total: int, unit: str, say: Callable[[str], object] | None, bar: Any) -> None:
        self._what, self._total, self._unit, self._say, self._bar = what, total, unit, say, bar
        self._done, self._at = 0, time.monotonic()

    def epoch(self, done: int, loss: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}")
        self.more(done - self._done, f", loss {loss:.3f}")

    def more(self, count: int, beside: str = "") -> None:
        self._done += count
        if self._bar is not None:
            self._bar.n = self._done
            self._bar.refresh()
        elif self._say is not None and (time.monotonic() - self._at >= LINES_EVERY_S or self._done == self._total):
            self._at = time.monotonic()
            self._say(f"{self._what}: {self._done}/{self._total} {self._unit}{beside}\n")


@contextmanager
def shown(what: str, total: int, unit: str, *, quiet: bool) -> Iterator[Shown]:
    if quiet:
        yield Shown(what, total, unit, None, None)
    elif sys.stderr.isatty():
        with tqdm(desc=what, total=total, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True) as bar:
            yield Shown(what, total, unit, None, bar)
    else:
        yield Shown(what, total, unit, sys.stderr.write, None)
