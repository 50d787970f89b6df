"""A model that writes from its rows to its folder: sequence-level distillation, and the check on what was held out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gateway.adapters.onnx.model_files import MODEL, load_manifest
from gateway.cache.answer_similarity import same_text
from gateway.cache.threshold.wrong_hits import Label
from gateway.tools.distillation.data import MAX_ANSWER, Data, DataInvalid, Row, drawn, halves, read_data
from gateway.tools.distillation.evaluation import (
    Answered,
    Student,
    accepted_above,
    as_markdown,
    by_embeddings,
    figures_of,
)
from gateway.tools.distillation.judge import Judge
from gateway.tools.distillation.options import Counted, Distilled, Place, Precision, Progress
from gateway.tools.distillation.process import trained
from gateway.tools.distillation.report import share_of
from gateway.tools.distillation.repository import CANARY, write_report, writing_snippet
from gateway.tools.embedding_model.fetch import build_environment
from gateway.tools.embedding_model.triton_repository import next_version, put_version

BY_HEART, SAMPLES = 50, 8  # rows: of those learnt, that are asked again; of those held out, that are shown


@dataclass(frozen=True, slots=True)
class Writing:
    """What the trainer is told of a model that writes."""

    epochs: int
    batch: int = 16
    rate: float = 3e-3
    decay: float = 1e-2
    prune: float = 0.0
    prune_epochs: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """A judge, an endpoint with OpenAI's protocol."""

    url: str
    model: str
    key: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class WritingWish:
    """`student`: a causal language model on disk; None: one of `layers`, `width` and `hidden`, that knows nothing."""

    place: Place
    student: Path | None
    layers: int
    width: int
    hidden: int
    vocabulary: int
    context: int
    agreement: float
    checked: int  # held-out rows that are asked
    precision: Precision
    training: Writing
    judge: Asked | None = None


def distil_writing(wish: WritingWish, progress: Progress, counted: Counted) -> Distilled:
    """Raises `DataInvalid`, `FetchFailed`, `JudgeSilent`, `ModelMissing` or `ModelCorrupt`; the repository is then as
    it was."""
    place = wish.place
    data = read_data(place.data, MAX_ANSWER)
    learnt, held = halves(data, place.held_out, place.hold_out, wish.training.seed, MAX_ANSWER)
    if not learnt or len(held) < 2:
        raise DataInvalid(
            f"{place.data}: {len(learnt)} rows to learn from and {len(held)} held out, expected more rows"
        )
    python = build_environment(place.build_env.absolute(), progress, make=False)
    load_manifest(place.models / MODEL)
    progress(f"training on {len(learnt)} answers, in {place.work}")
    rows = [{"text": row.text, "label": row.label} for row in learnt]
    said = trained(place, python, _job(wish), rows, None)
    return _published(wish, said, learnt, held, data, counted)


def _job(wish: WritingWish) -> dict[str, object]:
    return {
        "task": "generate", "student": None if wish.student is None else str(wish.student.absolute()),
        "layers": wish.layers, "width": wish.width, "hidden": wish.hidden, "vocabulary": wish.vocabulary,
        "context": wish.context, "precision": wish.precision, "plan": asdict(wish.training),
    }  # fmt: skip


def _published(
    wish: WritingWish, said: dict[str, Any], learnt: Sequence[Row], held: Sequence[Row], data: Data, counted: Counted
) -> Distilled:
    place, seed = wish.place, wish.training.seed
    built = place.work / "student"
    asked, again = (
        sorted(rows, key=lambda row: drawn(row.text, seed + 2))[:most]
        for rows, most in ((held, wish.checked), (learnt, BY_HEART))
    )
    student, judged, words = Student(built), by_embeddings(place.models / MODEL), "words and embeddings"
    if wish.judge is not None:
        judged, words = Judge(wish.judge.url, wish.judge.model, wish.judge.key, judged), "words, embeddings and a judge"
    with counted("asking the student", len(asked) + len(again), "questions") as told:
        accept_above = accepted_above(student.answered(asked[::2], judged, told), wish.agreement)
        found = student.answered(asked[1::2], judged, told)
        known = student.answered(again, lambda _, __: Label.UNDECIDED, told)
    figures = figures_of(found, len(asked[1::2]), accept_above)
    version = next_version(place.repository, place.name)
    report = {
        "name": place.name, "version": version, "rows": len(learnt), "skipped": data.skipped, "held_out": len(held),
        "checked": len(asked), "accept_above": round(accept_above, 4), "told_by": words,
        "by_heart": asdict(share_of([same_text(each.row.label, each.text) for each in known])),
        "training": asdict(wish.training), "precision": wish.precision, "bytes": (built / "model.onnx").stat().st_size,
        "samples": [_sample(each) for each in found[:SAMPLES]], **said,
    }  # fmt: skip
    policy = writing_snippet(place.name, place.repository / place.name / str(version), CANARY, accept_above)
    text, whole = as_markdown(report, figures, policy), report | asdict(figures)
    write_report(place.work, whole, text)
    place.repository.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nearhit-distill-") as scratch:
        folder = Path(shutil.copytree(built, Path(scratch) / "version"))
        write_report(folder, whole, text)
        entry = put_version(folder, place.repository, place.name)
    return Distilled(entry, None, whole, text, policy)


def _sample(one: Answered) -> dict[str, object]:
    return {"question": one.row.text, "large": one.row.label, "light": one.text, "confidence": round(one.confidence, 4)}
