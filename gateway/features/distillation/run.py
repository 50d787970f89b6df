"""Distils a classifier: trains it in the build environment, checks it on held-out rows, and publishes it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from gateway.adapters.onnx.model_files import MODEL, TOKENIZER_FILE, load_manifest
from gateway.features.distillation.data import Data, TrainingRow, check_classes, hash_fraction, read_data, split_data
from gateway.features.distillation.gate import VersionVerdict, judge
from gateway.features.distillation.options import DistilledModel, DistillOptions, OutputDir, Progress
from gateway.features.distillation.report import Comparison, as_json, as_markdown, compare, latency_ms, threshold
from gateway.features.distillation.repository import (
    CALLERS,
    assemble,
    publish,
    publish_graph,
    snippet,
    write_about,
    write_report,
)
from gateway.features.distillation.served.classifier import Classifier
from gateway.model_build.fetch import WEIGHTS, WHEEL_SHA256, build_environment, published_weights
from gateway.model_build.reduced_vectors import ensure_reduced_vectors
from gateway.model_build.repository import next_version
from gateway.model_build.trainer import run_package

MAX_TOKENS = 256  # tokens read of a text; the rest is cut


def distil(options: DistillOptions, progress: Progress) -> DistilledModel:
    """Distil a classifier and return its entries and its report.

    Raises `DataInvalid`, `FetchFailed`, `ModelMissing` or `ModelCorrupt`; then the repository is unchanged.
    """
    output = options.output
    data = read_data(output.data)
    check_classes(data, output.data)
    learnt, held_rows = split_data(data, output.data, output.held_out, output.hold_out, options.training.seed)
    python = build_environment(output.build_env.absolute(), progress, make=False)
    load_manifest(output.models / MODEL)
    tokenizer = output.models / MODEL / TOKENIZER_FILE
    vectors = ensure_reduced_vectors(output.models / MODEL, output.models / f"{MODEL}-static", progress)
    labels = Data(tuple(learnt), 0).labels
    with tempfile.TemporaryDirectory(prefix="nearhit-distill-") as scratch:
        transformer = (
            published_weights(python, output.build_env / WEIGHTS, Path(scratch), progress) if options.large else None
        )
        progress(f"training on {len(learnt)} rows with {len(labels)} labels, in {output.work}")
        job = _job(options, labels, tokenizer, vectors)
        how = ("quiet" if output.quiet else "shown", transformer or "")
        trained = run_package(
            Path(__file__).parent, output.work, python, job, _encode_rows(learnt, labels), how,
            failure="the student could not be trained", resumes=True,
        )  # fmt: skip
        progress(f"comparing with the teacher on {len(held_rows)} held-out rows")
        return _publish(options, Path(scratch), trained, learnt, held_rows, labels, tokenizer, data.skipped)


def _job(options: DistillOptions, labels: tuple[str, ...], tokenizer: Path, vectors: Path) -> dict[str, object]:
    return {
        "labels": labels, "plan": asdict(options.training), "width": options.width,
        "hidden": options.hidden, "tokens": options.tokens, "precision": options.precision,
        "tensorrt": options.tensorrt, "max_tokens": MAX_TOKENS, "tokenizer": str(tokenizer),
        "vectors": str(vectors), "tuning": asdict(options.tuning) if options.large else None,
        "transformer_digest": WHEEL_SHA256 if options.large else None,
    }  # fmt: skip


def _encode_rows(learnt: Sequence[TrainingRow], labels: tuple[str, ...]) -> list[dict[str, object]]:
    number = {label: at for at, label in enumerate(labels)}
    return [
        {
            "text": row.text, "label": number[row.label],
            "odds": [(number[name], odds) for name, odds in (row.odds or {}).items() if name in number],
        }
        for row in learnt
    ]  # fmt: skip


def _publish(
    options: DistillOptions,
    scratch: Path,
    trained: dict[str, object],
    learnt: Sequence[TrainingRow],
    held_rows: Sequence[TrainingRow],
    labels: tuple[str, ...],
    tokenizer: Path,
    skipped: int,
) -> DistilledModel:
    output = options.output
    built = {name: scratch / name for name in (("student", "teacher") if options.large else ("student",))}
    graph = f"{output.name}-graph" if options.tensorrt else None
    for name, folder in built.items():
        folder.mkdir()
        assemble(folder, output.work / f"{name}.onnx", tokenizer)
        write_about(folder, labels, MAX_TOKENS, 0.0)
    accept_above, figures = _evaluate(options, built, held_rows, labels)
    write_about(built["student"], labels, MAX_TOKENS, accept_above, graph)
    texts = [row.text for row in held_rows]
    gate = _compare(output, options.against, built["student"], held_rows)
    report = {
        "name": output.name,
        "version": next_version(output.repository, output.name),
        "labels": len(labels),
        "rows": len(learnt),
        "skipped": skipped,
        "held_out": len(held_rows),
        "accept_above": round(accept_above, 4),
        "taught_by": _teacher_text(options, learnt),
        "training": asdict(options.training),
        "precision": options.precision,
        "gate": None if gate is None else asdict(gate),
        "seconds": trained["seconds"],
        "resumed_after": trained["resumed_after"],
        "tokens": options.tokens,
        "used_tokens": trained["used_tokens"],
        "hidden": trained["hidden"],
        "models": {
            name: {
                "bytes": (folder / "model.onnx").stat().st_size,
                "fp32_bytes": trained["fp32_bytes" if name == "student" else "teacher_fp32_bytes"],
                "p50_ms": latency_ms(Classifier(folder), texts),
            }
            for name, folder in built.items()
        },
    }
    policy = snippet(output.name, options.policy_share, unsure=accept_above > 0.0)
    text = as_markdown(report, figures, policy)
    whole = as_json(report, figures)
    for folder in (built["student"], output.work):
        write_report(folder, whole, text)
    if gate is not None and not gate.passed and not options.force:
        return DistilledModel(None, None, whole, text, policy)
    output.repository.mkdir(parents=True, exist_ok=True)
    large = publish(built["teacher"], output.repository, f"{output.name}-large") if options.large else None
    if graph is not None:
        publish_graph(output.work / "student-gpu.onnx", output.repository, graph, len(labels), options.precision)
    entry = publish(built["student"], output.repository, output.name, 1 if graph is None else CALLERS)
    return DistilledModel(entry, large, whole, text, policy)


def _evaluate(
    options: DistillOptions, built: dict[str, Path], held_rows: Sequence[TrainingRow], labels: tuple[str, ...]
) -> tuple[float, Comparison]:
    """Return the threshold, from half of the rows held out, and the figures, from the other half.

    Both use the classifier that is served, not the model in training.
    """
    number = {label: at for at, label in enumerate(labels)}
    halves = np.array([hash_fraction(row.text, options.training.seed + 1) < 0.5 for row in held_rows])
    if halves.all() or not halves.any():
        halves = np.arange(len(held_rows)) % 2 == 0
    texts = [row.text for row in held_rows]
    odds = Classifier(built["student"]).probabilities(texts)
    confidence, answers = odds.max(1), odds.argmax(1)
    given = np.array([number[row.label] for row in held_rows])
    if options.large:
        taught = Classifier(built["teacher"]).probabilities(texts).argmax(1)
    else:
        taught = np.array([number.get(max(row.odds, key=row.odds.__getitem__), -1) if row.odds else number[row.label]
                           for row in held_rows])  # fmt: skip
    accept_above = (
        threshold(confidence[halves], (answers == taught)[halves], options.agreement) if options.agreement else 0.0
    )
    rest = ~halves
    return accept_above, compare(confidence[rest], answers[rest], taught[rest], given[rest], accept_above)


def _compare(
    output: OutputDir, against: int | None, built: Path, held_rows: Sequence[TrainingRow]
) -> VersionVerdict | None:
    """Compare the new version with an earlier one of its name on the rows held out. Return None if there is none."""
    version = against or next_version(output.repository, output.name) - 1
    try:
        newest = Classifier(output.repository / output.name / str(version))
    except (OSError, ValueError, KeyError):  # there is none, or it is a model of another kind
        return None
    texts, given = [row.text for row in held_rows], np.array([row.label for row in held_rows])
    before, after = (
        np.array(model.labels)[model.probabilities(texts).argmax(1)] == given for model in (newest, Classifier(built))
    )
    return judge(version, before, after)


def _teacher_text(options: DistillOptions, learnt: Sequence[TrainingRow]) -> str:
    if options.large and options.tuning.epochs:
        return (
            f"The teacher is all-MiniLM with a linear head, tuned on the same rows for {options.tuning.epochs} epochs, "
            f"{options.precision}."
        )
    if options.large:
        return f"The teacher is all-MiniLM with a linear head; only the head was trained, {options.precision}."
    with_odds = sum(row.odds is not None for row in learnt)
    if with_odds:
        return f"The teacher's probabilities came with {with_odds} of the rows."
    return "The labels are the teacher's answers, without probabilities, so agreement and accuracy are the same."
