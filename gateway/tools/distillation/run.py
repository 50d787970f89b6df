"""A classifier from its rows to its entry: training in the build environment, the check on what was held out."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, TOKENIZER_FILE, load_manifest
from gateway.tools.demo.static_vectors import ensure_static_vectors
from gateway.tools.distillation.data import Data, TrainingRow, check_classes, drawn, parts, read_data
from gateway.tools.distillation.options import Distilled, DistillOptions, Progress
from gateway.tools.distillation.process import trained
from gateway.tools.distillation.report import Compared, as_json, as_markdown, compared, latency_ms, threshold
from gateway.tools.distillation.repository import (
    CALLERS,
    assemble,
    publish,
    publish_graph,
    snippet,
    write_about,
    write_report,
)
from gateway.tools.distillation.served.classifier import Classifier
from gateway.tools.embedding_model.fetch import WHEEL_SHA256, build_environment, published_weights
from gateway.tools.embedding_model.triton_repository import next_version

MAX_TOKENS = 256  # of a text; the rest is not read


def distil(wish: DistillOptions, progress: Progress) -> Distilled:
    """Raises `DataInvalid`, `FetchFailed`, `ModelMissing` or `ModelCorrupt`; the repository is then as it was."""
    place = wish.place
    data = read_data(place.data)
    check_classes(data, place.data)
    learnt, held = parts(data, place.data, place.held_out, place.hold_out, wish.training.seed)
    python = build_environment(place.build_env.absolute(), progress, make=False)
    load_manifest(place.models / MODEL)
    tokenizer = place.models / MODEL / TOKENIZER_FILE
    vectors = ensure_static_vectors(
        place.models / MODEL / MODEL_FILE, tokenizer, place.models / f"{MODEL}-static", progress
    )
    labels = Data(tuple(learnt), 0).labels
    with tempfile.TemporaryDirectory(prefix="nearhit-distill-") as scratch:
        transformer = published_weights(python, Path(scratch), progress) if wish.large else None
        progress(f"training on {len(learnt)} rows with {len(labels)} labels, in {place.work}")
        job = _job(wish, labels, tokenizer, vectors)
        said = trained(place, python, job, _numbered(learnt, labels), transformer)
        progress(f"comparing with the teacher on {len(held)} held-out rows")
        return _published(wish, Path(scratch), said, learnt, held, labels, tokenizer, data.skipped)


def _job(wish: DistillOptions, labels: tuple[str, ...], tokenizer: Path, vectors: Path) -> dict[str, object]:
    return {
        "labels": labels, "plan": asdict(wish.training), "width": wish.width,
        "hidden": wish.hidden, "precision": wish.precision, "tensorrt": wish.tensorrt,
        "max_tokens": MAX_TOKENS, "tokenizer": str(tokenizer),
        "vectors": str(vectors), "tuning": asdict(wish.tuning) if wish.large else None,
        "transformer_digest": WHEEL_SHA256 if wish.large else None,
    }  # fmt: skip


def _numbered(learnt: Sequence[TrainingRow], labels: tuple[str, ...]) -> list[dict[str, object]]:
    number = {label: at for at, label in enumerate(labels)}
    return [
        {
            "text": row.text, "label": number[row.label],
            "odds": [(number[name], odds) for name, odds in (row.odds or {}).items() if name in number],
        }
        for row in learnt
    ]  # fmt: skip


def _published(
    wish: DistillOptions, scratch: Path, said: dict[str, object], learnt: Sequence[TrainingRow], held: Sequence[TrainingRow],
    labels: tuple[str, ...], tokenizer: Path, skipped: int,
) -> Distilled:  # fmt: skip
    place = wish.place
    built = {name: scratch / name for name in (("student", "teacher") if wish.large else ("student",))}
    graph = f"{place.name}-graph" if wish.tensorrt else None
    for name, folder in built.items():
        folder.mkdir()
        assemble(folder, place.work / f"{name}.onnx", tokenizer)
        write_about(folder, labels, MAX_TOKENS, 0.0)
    accept_above, figures = _checked(wish, built, held, labels)
    write_about(built["student"], labels, MAX_TOKENS, accept_above, graph)
    texts = [row.text for row in held]
    report = {
        "name": place.name, "version": next_version(place.repository, place.name), "labels": len(labels),
        "rows": len(learnt), "skipped": skipped, "held_out": len(held), "accept_above": round(accept_above, 4),
        "taught_by": _taught_by(wish, learnt), "training": asdict(wish.training), "precision": wish.precision,
        "seconds": said["seconds"], "resumed_after": said["resumed_after"], "zeros": said["zeros"],
        "models": {
            name: {
                "bytes": (folder / "model.onnx").stat().st_size,
                "fp32_bytes": said["fp32_bytes" if name == "student" else "teacher_fp32_bytes"],
                "p50_ms": latency_ms(Classifier(folder), texts),
            }
            for name, folder in built.items()
        },
    }  # fmt: skip
    policy = snippet(place.name, wish.policy_share, unsure=accept_above > 0.0)
    text = as_markdown(report, figures, policy)
    whole = as_json(report, figures)
    for folder in (built["student"], place.work):
        write_report(folder, whole, text)
    place.repository.mkdir(parents=True, exist_ok=True)
    large = publish(built["teacher"], place.repository, f"{place.name}-large") if wish.large else None
    if graph is not None:
        publish_graph(place.work / "student-gpu.onnx", place.repository, graph, len(labels), wish.precision)
    entry = publish(built["student"], place.repository, place.name, 1 if graph is None else CALLERS)
    return Distilled(entry, large, whole, text, policy)


def _checked(
    wish: DistillOptions, built: dict[str, Path], held: Sequence[TrainingRow], labels: tuple[str, ...]
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


def _taught_by(wish: DistillOptions, learnt: Sequence[TrainingRow]) -> str:
    if wish.large and wish.tuning.epochs:
        return (
            f"The teacher is all-MiniLM with a linear head, tuned on the same rows for {wish.tuning.epochs} epochs, "
            f"{wish.precision}."
        )
    if wish.large:
        return f"The teacher is all-MiniLM with a linear head, which alone was trained, {wish.precision}."
    told = sum(row.odds is not None for row in learnt)
    if told:
        return f"The teacher's probabilities came with {told} of the rows."
    return "The labels are the teacher's answers, without probabilities: to agree and to be right are one thing here."
