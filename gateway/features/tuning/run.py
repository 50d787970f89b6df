"""Tunes the verifier on labelled pairs, checks it on the newest, and puts it in force if the gate lets it through."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.adapters.onnx.cross_encoder import ABOUT_FILE as CROSS_ABOUT
from gateway.adapters.onnx.cross_encoder import GRAPH_FILE, OnnxCrossEncoder
from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.cache.verifier_versions import VerifierVersions
from gateway.cache.verifiers import ABOUT_FILE, TRAINED, WEIGHTS, LearnedVerifier, load_weights
from gateway.features.tuning.encoder import Training, fine_tune
from gateway.features.tuning.gate import LEAST_LABELS, FloatArray, GateVerdict, OperatingPoint, at_promise, judge
from gateway.features.tuning.numbers import Numbers, ScoreInputs, fit
from gateway.features.tuning.pairs import MAX_PAIRS, LabelledPair, PairSplit, components, cut
from gateway.features.tuning.reference import anchor_pairs, loss, order, reference_pairs
from gateway.features.tuning.scoring import PairReader, Tell, logits, teaches

FOLDS = 2  # the numbers of a candidate are chosen on pairs that they were not fitted on
AROUND = (0.5, 1.0, 2.0)  # multiples of the promise: their mean chooses between candidates, as it varies less
EXAMPLES = 5  # of each kind in the report
ANCHOR_SHARE = 0.1  # least share of the anchors in the training, in which they are repeated
REPLAY = 0.2  # share of the shipped opinion in the targets of the anchors

Step = Callable[[str], None]
Bar = Callable[[str, int], AbstractContextManager[Tell]]  # (text, total) to a function that counts


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The settings of a run."""

    data_dir: Path
    model_dir: Path  # of the embedding model
    embedder: str  # its name, as `verifier_versions.put_in_force` takes it
    promise: float  # share of wrong hits
    python: Path | None  # of the build environment; None: only the numbers are tuned
    training: Training
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """Weights that could be put in force."""

    name: str
    directory: Path  # with the cross-encoder
    numbers: Numbers
    held_out: ScoreInputs


@dataclass(frozen=True, slots=True)
class Readings:
    """The inputs that a cross-encoder gives for all parts."""

    name: str
    directory: Path  # with the cross-encoder
    fitting: ScoreInputs
    held_out: ScoreInputs
    anchors: ScoreInputs

    def with_logits(self, name: str, directory: Path, logits: Sequence[FloatArray]) -> Readings:
        """Return the same with the logits of another cross-encoder, for each of the parts."""
        parts = (self.fitting, self.held_out, self.anchors)
        return Readings(name, directory, *(replace(part, logit=each) for part, each in zip(parts, logits, strict=True)))


@dataclass(frozen=True, slots=True)
class CurrentWeights:
    """The weights in force."""

    version: str | None  # None: the shipped ones
    directory: Path
    verifier: LearnedVerifier
    numbers: Numbers
    cross_encoder: OnnxCrossEncoder


def tune(pairs: Sequence[LabelledPair], options: TuneOptions, step: Step, bar: Bar) -> dict[str, Any]:
    """Tune the verifier on the pairs, oldest first. Return the report, as `nearhit tune --json` prints it.

    Raise `FetchFailed`, `WeightsCorrupt`, `ModelMissing`, `ModelCorrupt` or OSError; then nothing has changed.
    """
    usable = [pair for pair in pairs if teaches(pair)][-MAX_PAIRS:]
    current = _current(options)
    if len(usable) < LEAST_LABELS:
        why = f"there are {len(usable)} labels of different wordings, expected at least {LEAST_LABELS}"
        return _refusal(current, len(usable), why)
    parts = cut(usable)
    if (fault := _fault(parts)) is not None:
        return _refusal(current, len(usable), fault)
    reader = PairReader(OnnxEncoder(options.model_dir), current.verifier)
    anchors = anchor_pairs()
    with bar("reading the pairs", len(parts.fitting) + len(parts.held_out) + len(anchors)) as tell:
        inputs = [reader.inputs(part, current.cross_encoder, tell) for part in (parts.fitting, parts.held_out, anchors)]
    readings = Readings("numbers", current.directory, *inputs)
    (options.data_dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tune-", dir=options.data_dir) as scratch:
        tuned, training = _fine_tuned(parts, readings, anchors, options, Path(scratch), step, bar)
        chosen, choice = _choose(parts, current, [readings, *tuned], _same(anchors), options.promise)
        lost = None if chosen is None else _lost(reader, current, chosen, options, bar)
        return _judge_candidate(
            parts, current, chosen, readings.held_out, options, len(usable), choice | training, lost
        )


def _current(options: TuneOptions) -> CurrentWeights:
    versions = VerifierVersions(options.data_dir)
    version = versions.in_force()
    directory = WEIGHTS if version is None else versions.directory(version, options.embedder)
    weights = load_weights(directory)
    numbers = Numbers(weights.first, weights.second, weights.calibration.curve, weights.calibration.prior)
    cross_encoder = OnnxCrossEncoder(options.model_dir, directory)
    return CurrentWeights(version, directory, LearnedVerifier(weights, version), numbers, cross_encoder)


def _fault(parts: PairSplit) -> str | None:
    """Return the reason why the parts cannot be used, or None."""
    for name, part in (("oldest", parts.training), ("middle", parts.fitting), ("newest", parts.held_out)):
        if len({pair.same for pair in part}) < 2:
            return (
                f"the {name} part has {len(part)} labels and not both kinds, expected right and wrong ones in each part"
            )
    return None


def _fine_tuned(
    parts: PairSplit,
    readings: Readings,
    anchors: list[LabelledPair],
    options: TuneOptions,
    work: Path,
    step: Step,
    bar: Bar,
) -> tuple[list[Readings], dict[str, Any]]:
    """Return the inputs that the tuned cross-encoder gives, and a report; empty without a build environment."""
    if options.python is None:
        return [], {"training": "the cross-encoder was not tuned: there is no build environment"}
    shipped = OnnxCrossEncoder(options.model_dir, WEIGHTS)
    with bar("asking the shipped cross-encoder", len(anchors)) as tell:
        opinions = np.array([shipped.probability(each) for each in logits(anchors, shipped, tell).tolist()])
    times = max(1, round(ANCHOR_SHARE * len(parts.training) / len(anchors)))
    targets = np.tile((1.0 - REPLAY) * _same(anchors) + REPLAY * opinions, times)
    step(f"tuning the cross-encoder on {len(parts.training)} pairs, with {len(anchors)} others")
    report = fine_tune(
        [*parts.training, *anchors * times],
        np.concatenate([_same(parts.training), targets]),
        weights=WEIGHTS,
        model_dir=options.model_dir,
        python=options.python,
        work=work,
        plan=options.training,
        quiet=options.quiet,
    )
    cross_encoder = OnnxCrossEncoder(options.model_dir, work)
    every = (parts.fitting, parts.held_out, anchors)
    with bar("asking the tuned cross-encoder", sum(map(len, every))) as tell:
        all_logits = [logits(part, cross_encoder, tell) for part in every]
    return [readings.with_logits("numbers and cross-encoder", work, all_logits)], {"training": report}


def _choose(
    parts: PairSplit, current: CurrentWeights, encoders: Sequence[Readings], anchored: NDArray[np.bool_], promise: float
) -> tuple[Candidate | None, dict[str, Any]]:
    """Return the candidate that serves most of the middle part, and the shares of all.

    The candidate is None if the weights in force serve most. `anchored` has the labels of the anchors.
    """
    same = _same(parts.fitting)
    folds = np.array(components(parts.fitting)) % FOLDS
    earlier = current.numbers.scores(encoders[0].fitting)
    results: dict[str, float] = {"in force": _typical(earlier, same, promise)}
    best: Candidate | None = None
    for each in encoders:
        name, fitting, scores = each.name, each.fitting, np.zeros(len(same))
        anchors = each.anchors, anchored
        for fold in range(FOLDS):
            out = folds == fold
            numbers = fit(current.numbers, fitting.only(~out), same[~out], earlier[~out], anchors)
            scores[out] = numbers.scores(fitting.only(out))
        results[name] = _typical(scores, same, promise)
        if results[name] > max(value for key, value in results.items() if key != name):
            numbers = fit(current.numbers, fitting, same, earlier, anchors)
            best = Candidate(name, each.directory, numbers, each.held_out)
    return best, {"candidates": {name: round(value, 4) for name, value in results.items()}}


def _typical(scores: FloatArray, same: NDArray[np.bool_], promise: float) -> float:
    return float(np.mean([at_promise(scores, same, promise * each).share for each in AROUND]))


def _same(pairs: Sequence[LabelledPair]) -> NDArray[np.bool_]:
    return np.array([pair.same for pair in pairs], np.bool_)


def _lost(reader: PairReader, current: CurrentWeights, chosen: Candidate, options: TuneOptions, bar: Bar) -> str | None:
    """Return the reason to refuse the candidate by the reference pairs, or None."""
    pairs = reference_pairs()
    cross_encoder = OnnxCrossEncoder(options.model_dir, chosen.directory)
    with bar("reading everyday questions", 2 * len(pairs)) as tell:
        before = reader.inputs(pairs, current.cross_encoder, tell)
        after = replace(before, logit=logits(pairs, cross_encoder, tell))
    same = _same(pairs)
    return loss(order(current.numbers.scores(before), same), order(chosen.numbers.scores(after), same))


def _judge_candidate(
    parts: PairSplit,
    current: CurrentWeights,
    chosen: Candidate | None,
    held_out: ScoreInputs,
    options: TuneOptions,
    labels: int,
    more: dict[str, Any],
    lost: str | None,
) -> dict[str, Any]:
    """Judge the candidate on the newest part, and put it in force if it passes. `lost` comes from `_lost`."""
    same, before = _same(parts.held_out), current.numbers.scores(held_out)
    if chosen is None:
        was = at_promise(before, same, options.promise)
        why = "no candidate serves more of the labels before the newest fifth than the verifier in force"
        return _report(False, why, was, was, labels, current.version, more)
    after = chosen.numbers.scores(chosen.held_out)
    verdict = judge(before, after, same, parts.groups, options.promise)
    if verdict.passed and lost is not None:
        verdict = replace(verdict, passed=False, why=lost)
    more = more | {"candidate": chosen.name, "examples": _examples(parts.held_out, before, after, verdict)}
    version = current.version
    if verdict.passed:
        report = {
            "made_at": time.time(),
            "promise": options.promise,
            "why": verdict.why,
            "before": asdict(verdict.before),
            "after": asdict(verdict.after),
            "labels": labels,
            **{key: more[key] for key in ("candidates", "training")},
        }
        version = VerifierVersions(options.data_dir).put_in_force(_files(current, chosen), options.embedder, report)
    return _report(verdict.passed, verdict.why, verdict.before, verdict.after, labels, version, more)


def _files(current: CurrentWeights, chosen: Candidate) -> dict[str, bytes]:
    """Return the contents of a version: the trees in force, the numbers, and the cross-encoder of the candidate."""
    about = json.loads((current.directory / ABOUT_FILE).read_bytes())
    numbers = chosen.numbers
    about["combination"] = {"first": list(astuple(numbers.first)), "second": list(astuple(numbers.second))}
    about["curves"] |= {"learned": list(numbers.curve)}
    about["priors"] |= {"learned": [list(band) for band in numbers.prior]}
    files = {name: (chosen.directory / name).read_bytes() for name in (CROSS_ABOUT, GRAPH_FILE)}
    arrays = (current.directory / TRAINED.arrays_file).read_bytes()
    return files | {TRAINED.about_file: json.dumps(about, indent=1).encode(), TRAINED.arrays_file: arrays}


def _examples(
    pairs: Sequence[LabelledPair], before: FloatArray, after: FloatArray, verdict: GateVerdict
) -> dict[str, list[dict[str, Any]]]:
    """Return held-out pairs that the candidate decides otherwise, and rightly (`won`) or wrongly (`lost`)."""
    was, now = before >= verdict.before.threshold, after >= verdict.after.threshold

    def first(right: bool) -> Iterator[dict[str, Any]]:
        changed = zip(pairs, was.tolist(), now.tolist(), strict=True)
        return (
            {"a": pair.stored, "b": pair.asked, "y": int(pair.same), "served": served_now}
            for pair, served_then, served_now in changed
            if served_then != served_now and (pair.same == served_now) == right
        )

    return {"won": list(islice(first(right=True), EXAMPLES)), "lost": list(islice(first(right=False), EXAMPLES))}


def _refusal(current: CurrentWeights, labels: int, why: str) -> dict[str, Any]:
    return _report(False, why, None, None, labels, current.version, {})


def _report(
    in_force: bool,
    why: str,
    before: OperatingPoint | None,
    after: OperatingPoint | None,
    labels: int,
    version: str | None,
    more: dict[str, Any],
) -> dict[str, Any]:
    """Return the report. `version` is in force afterwards; null stands for the shipped weights."""
    return {
        "in_force": in_force,
        "why": why,
        "before": _figures(before),
        "after": _figures(after),
        "labels": labels,
        "version": version,
        **{"examples": {"won": [], "lost": []}},
        **more,
    }


def _figures(each: OperatingPoint | None) -> dict[str, float | None]:
    """Return the figures for JSON, which has no infinity."""
    if each is None:
        return {}
    threshold = each.threshold if np.isfinite(each.threshold) else None
    return {"served": each.share, "wrong": each.wrong, "threshold": threshold}
