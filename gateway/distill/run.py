"""All of `nearhit distill`: rows, training in the build environment, the check on what was held out, the entry."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from gateway.demo.static_vectors import ensure_static_vectors
from gateway.distill.data import Data, DataInvalid, Row, check_classes, drawn, read_data, split
from gateway.distill.report import Compared, as_json, as_markdown, compared, latency_ms, threshold
from gateway.distill.repository import assemble, next_version, publish, snippet, write_about
from gateway.distill.served.classifier import Classifier
from gateway.modelkit.environment import FetchFailed, python_of
from gateway.modelkit.fetch import WHEEL_SHA256, build_environment, published_weights
from gateway.modelkit.files import MODEL, MODEL_FILE, TOKENIZER_FILE, load_manifest

MAX_TOKENS = 256  # of a text; the rest is not read
CANARY = 5  # percent, of the snippet
# Appended, not put first: what stands beside the trainer must hide no module of the environment.
TRAINER = "import sys; sys.path.append(sys.argv[1]); from trainer.main import run; run(sys.argv[2:])"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Training:
    """What the trainer is told; docs/distill.md says what each means."""

    alpha: float = 0.3
    temperature: float = 2.0
    epochs: int = 8
    batch: int = 64
    rate: float = 3e-3
    decay: float = 1e-3
    prune: float = 0.0
    prune_epochs: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    data: Path
    held_out: Path | None  # None: `hold_out` of the data
    hold_out: float
    name: str
    repository: Path
    work: Path
    build_env: Path
    models: Path
    large: bool  # train a teacher first, and publish it as NAME-large
    agreement: float  # that the student is to have with its teacher where it is sure; 0: it always answers
    width: int
    hidden: int
    training: Training
    quiet: bool
    policy_share: int = CANARY


@dataclass(frozen=True, slots=True)
class Distilled:
    entry: Path
    large: Path | None
    report: dict[str, Any]
    text: str  # the report as Markdown
    policy: str


def distil(wish: Wish, progress: Progress) -> Distilled:
    """Raises `DataInvalid`, `FetchFailed`, `ModelMissing` or `ModelCorrupt`; the repository is then as it was."""
    learnt, held, skipped = _parts(wish)
    python = build_environment(wish.build_env.absolute(), progress, make=False)
    load_manifest(wish.models / MODEL)
    tokenizer = wish.models / MODEL / TOKENIZER_FILE
    vectors = ensure_static_vectors(
        wish.models / MODEL / MODEL_FILE, tokenizer, wish.models / f"{MODEL}-static", progress
    )
    labels = Data(tuple(learnt), 0).labels
    wish.work.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="nearhit-distill-") as scratch:
        transformer = published_weights(python, Path(scratch), progress) if wish.large else None
        progress(f"training on {len(learnt)} rows with {len(labels)} labels, in {wish.work}")
        _train(wish, python, learnt, labels, tokenizer, vectors, transformer)
        progress(f"comparing with the teacher on {len(held)} held-out rows")
        return _published(wish, Path(scratch), learnt, held, labels, tokenizer, skipped)


def _parts(wish: Wish) -> tuple[list[Row], list[Row], int]:
    """(to learn from, held out, skipped). Raises `DataInvalid`."""
    data = read_data(wish.data)
    check_classes(data, wish.data)
    if wish.held_out is None:
        learnt, held = split(data.rows, wish.hold_out, wish.training.seed)
        of = wish.data
    else:
        learnt, held, of = list(data.rows), list(read_data(wish.held_out).rows), wish.held_out
    known = {row.label for row in learnt}
    if strange := sorted({row.label for row in held} - known):
        if wish.held_out is not None:
            raise DataInvalid(f"{of}: the label {strange[0]!r} is in no row of {wish.data}")
        held = [row for row in held if row.label in known]  # all its few rows happen to be held out
    if len(held) < 2 or len(known) < 2:
        raise DataInvalid(f"{of}: {len(held)} rows are held out of {len(data.rows)}, expected more rows")
    return learnt, held, data.skipped


def _train(
    wish: Wish, python: Path, learnt: Sequence[Row], labels: tuple[str, ...], tokenizer: Path, vectors: Path,
    transformer: Path | None,
) -> None:  # fmt: skip
    number = {label: at for at, label in enumerate(labels)}
    lines = [
        orjson.dumps({
            "text": row.text, "label": number[row.label],
            "odds": [(number[name], odds) for name, odds in (row.odds or {}).items() if name in number],
        })
        for row in learnt
    ]  # fmt: skip
    job = {
        "labels": labels, "plan": asdict(wish.training), "width": wish.width, "hidden": wish.hidden,
        "max_tokens": MAX_TOKENS, "threads": 2, "tokenizer": str(tokenizer), "vectors": str(vectors),
        "transformer_digest": WHEEL_SHA256 if transformer else None,
    }  # fmt: skip
    _write(wish.work / "rows.jsonl", b"\n".join(lines))
    _write(wish.work / "job.json", orjson.dumps(job))
    environ = {
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    given = [Path(__file__).parent, wish.work, "quiet" if wish.quiet else "shown", transformer or ""]
    done = subprocess.run(  # noqa: S603 - our own words and paths
        [python_of(python.parents[1]), "-I", "-c", TRAINER, *map(str, given)],
        stdin=subprocess.DEVNULL, env={**os.environ, **environ}, check=False,
    )  # fmt: skip
    if done.returncode < 0:
        raise FetchFailed(
            f"the trainer was ended by signal {-done.returncode}: the same command goes on from its last epoch"
        )
    if done.returncode:
        raise FetchFailed(
            f"the student could not be trained: the trainer ended with {done.returncode}, and said why above"
        )


def _write(path: Path, data: bytes) -> None:
    """Questions and answers: nobody else's to read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def _published(
    wish: Wish, scratch: Path, learnt: Sequence[Row], held: Sequence[Row], labels: tuple[str, ...], tokenizer: Path,
    skipped: int,
) -> Distilled:  # fmt: skip
    trained = json.loads((wish.work / "trained.json").read_text())
    built = {name: scratch / name for name in (("student", "teacher") if wish.large else ("student",))}
    for name, folder in built.items():
        folder.mkdir()
        assemble(folder, wish.work / f"{name}.onnx", tokenizer, labels, MAX_TOKENS)
    accept_above, figures = _checked(wish, built, held, labels)
    write_about(built["student"], labels, MAX_TOKENS, accept_above)
    texts = [row.text for row in held]
    report = {
        "name": wish.name, "version": next_version(wish.repository, wish.name), "labels": len(labels),
        "rows": len(learnt), "skipped": skipped, "held_out": len(held), "accept_above": round(accept_above, 4),
        "taught_by": _taught_by(wish, learnt), "training": asdict(wish.training), "seconds": trained["seconds"],
        "resumed_after": trained["resumed_after"], "zeros": trained["zeros"],
        "models": {
            name: {
                "bytes": (folder / "model.onnx").stat().st_size,
                "fp32_bytes": trained["fp32_bytes" if name == "student" else "teacher_fp32_bytes"],
                "p50_ms": latency_ms(Classifier(folder), texts),
            }
            for name, folder in built.items()
        },
    }  # fmt: skip
    policy = snippet(wish.name, wish.policy_share, unsure=accept_above > 0.0)
    text = as_markdown(report, figures, policy)
    said = as_json(report, figures)
    for folder in (built["student"], wish.work):
        (folder / "report.json").write_text(json.dumps(said, indent=1) + "\n")
        (folder / "report.md").write_text(text)
    wish.repository.mkdir(parents=True, exist_ok=True)
    large = publish(built["teacher"], wish.repository, f"{wish.name}-large") if wish.large else None
    return Distilled(publish(built["student"], wish.repository, wish.name), large, said, text, policy)


def _checked(
    wish: Wish, built: dict[str, Path], held: Sequence[Row], labels: tuple[str, ...]
) -> tuple[float, Compared]:
    """The threshold, of one half of what is held out, and the figures, of the other half: through what serves."""
    number = {label: at for at, label in enumerate(labels)}
    halves = np.array([drawn(row.text, wish.training.seed + 1) < 0.5 for row in held])
    if halves.all() or not halves.any():
        halves = np.arange(len(held)) % 2 == 0
    texts = [row.text for row in held]
    odds = Classifier(built["student"]).probabilities(texts)
    confidence, said = odds.max(1), odds.argmax(1)
    given = np.array([number[row.label] for row in held])
    if wish.large:
        taught = Classifier(built["teacher"]).probabilities(texts).argmax(1)
    else:
        taught = np.array([number.get(max(row.odds, key=row.odds.__getitem__), -1) if row.odds else number[row.label]
                           for row in held])  # fmt: skip
    accept_above = threshold(confidence[halves], (said == taught)[halves], wish.agreement) if wish.agreement else 0.0
    rest = ~halves
    return accept_above, compared(confidence[rest], said[rest], taught[rest], given[rest], accept_above)


def _taught_by(wish: Wish, learnt: Sequence[Row]) -> str:
    if wish.large:
        return "The teacher is all-MiniLM with a linear head, trained on the same rows, int8."
    told = sum(row.odds is not None for row in learnt)
    if told:
        return f"The teacher's probabilities came with {told} of the rows."
    return "The labels are the teacher's answers, without probabilities: to agree and to be right are one thing here."
