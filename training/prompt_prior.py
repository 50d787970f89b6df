"""Trains the weights of the shipped complexity: `python -m training.prompt_prior --outcomes JSONL.GZ --many JSONL.GZ`.

It uses data that may ship. They are RouteLLM's outcomes of two models on MMLU subjects (Apache-2.0) and LLMRouter's
outcomes of nine models (MIT). Our own prompts, graded by hand, are in prompts/graded.txt and prompts/tasks.txt. It
needs numpy alone, and its draws have fixed seeds.

`--tables` prints the value of the scores on benchmarks that were held out, beside prompt length: half of the subjects
of MMLU for exam questions, and each form of the nine models' prompts for all others. Nothing is written then.
"""

# ruff: noqa: T201, S311 (a command prints; drawn changes of texts)
from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gateway.routing.complexity import WEIGHTS, load_weights
from gateway.routing.prompt_features import NAMES, OPTION_NAMES, Commonness, FloatArray, PromptReading
from gateway.routing.prompt_prior import (
    MAX_DEVIATIONS,
    RATES,
    STRUCTURE_NAMES,
    TRAINED,
    ExamWeights,
    OpenWeights,
    PriorWeights,
    Scale,
    arrays_of,
    numbers_of,
    structure_of,
)
from training import gaps
from training.perturb import typo

PROMPTS = Path(__file__).parent / "prompts"
GRADED, TASKS = PROMPTS / "graded.txt", PROMPTS / "tasks.txt"
TASK_WEIGHT = 2.0  # of a prompt of tasks.txt: those of graded.txt are mostly short questions
# The most that a grade says of its kind. The large model is little better at prose, however much is asked for.
KIND_CAPS = {
    "essay": 0.45, "plan": 0.55, "explain": 0.3, "law": 0.5, "medicine": 0.5, "advice": 0.3, "extract": 0.6,
    "writing": 0.25, "roleplay": 0.25, "summary": 0.35,
}  # fmt: skip
MOST_GRADE = 0.8
PENALTY = 1 / 0.3  # of the task's weights, by prompts of tasks.txt that were held out
MOST_TASK = 0.2  # a logit: sums, proofs and programs are above it, so length decides among them
LENGTH = 0.35  # logits of the task for each unit of the logarithm of the length
LEARNT = 0.2  # the deviation of the part that is learnt from outcomes, in the same unit
EXAM_LEARNT = 0.5  # the same for exam questions, in deviations of the length
RIDGE = 7.5e3  # for each copy of the prompts
# Features of the options that another case or a missing comma changes.
UNSTEADY = ("option_capitals", "option_commas")
IGNORED = 1e9  # a deviation: scaled values are zero
SEED = 7
HALVES = 8
MIN_GAP = 0.05  # of a pair in the tables; pairs with smaller gaps are noise
CREDITS = {
    "outcomes": "lm-sys/RouteLLM, routellm/evals, Apache-2.0 (MMLU: MIT)",
    "outcomes of many models": "ulab-uiuc/LLMRouter, data/dcrouter_preprocessed/train.json, MIT",
    "graded prompts": "our own, written and graded by hand (training/prompts/graded.txt and tasks.txt)",
}

Ints = npt.NDArray[np.int_]
Names = npt.NDArray[np.str_]
Change = Callable[[str], str]


def changes() -> Sequence[Change]:
    """Return the spellings in which each prompt is read. The first one leaves it as it is."""
    draw = random.Random(SEED)

    def mistyped(text: str) -> str:
        for _ in range(3):
            text = typo(text, draw) or text
        return text

    return (
        lambda text: text,
        mistyped,
        mistyped,
        lambda text: re.sub(r"[^\w\s]", "", text),
        lambda text: text.rstrip("?.! "),
        lambda text: text.replace(" ", "  "),
    )


@dataclass(frozen=True, slots=True)
class Readings:
    """n prompts, each in m spellings."""

    features: FloatArray  # (m, n, k), of the text
    options: FloatArray  # (m, n, o); zeros where there are none
    lengths: FloatArray  # (m, n), logarithms

    def at(self, chosen: npt.NDArray[np.bool_]) -> Readings:
        return Readings(self.features[:, chosen], self.options[:, chosen], self.lengths[:, chosen])


def read(texts: Sequence[str], rarity: Commonness) -> Readings:
    none = np.zeros(len(OPTION_NAMES))
    found = [[PromptReading(change(text), rarity) for text in texts] for change in changes()]
    return Readings(
        np.array([[each.features for each in row] for row in found]),
        np.array([[none if each.options is None else each.options for each in row] for row in found]),
        np.array([[each.length for each in row] for row in found]),
    )


@dataclass(frozen=True, slots=True)
class Graded:
    texts: Sequence[str]
    kinds: Sequence[str]
    grades: FloatArray  # in [0, 1]


def load_graded(path: Path) -> Graded:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" ", 2) for line in lines if line and not line.startswith("#")]
    texts = [text.replace("\\n", "\n") for _, _, text in rows]
    return Graded(texts, [kind for kind, _, _ in rows], np.array([float(tenths) / 10 for _, tenths, _ in rows]))


_CODE = re.compile(r"Write (a|an|python)? ?(python |code|\w+ ){0,3}(function|program|to)")
_ASKS = re.compile(r"Who|In wh|Wh[aei]|Name")
_NAMED = re.compile(r"[a-z,'\"] [A-Z][a-z]|\b1\d\d\d\b")  # a name or a year


def form_of(prompt: str) -> str:
    """Return the benchmark of a prompt of LLMRouter, as far as its form tells it: the file does not say."""
    numbers = len(re.findall(r"\d+", prompt))
    latex = re.search(r"\$(?!\d)|\\[a-z]", prompt) is not None
    rules = (
        ("grid", re.search(r"There (are|is) \d+ houses", prompt) is not None),
        ("complete code", "def " in prompt),
        ("write code", _CODE.match(prompt) is not None),
        ("words", prompt.count(",") >= 8 and "?" not in prompt and len(prompt) < 11 * (prompt.count(",") + 1)),
        ("competition", latex),
        ("sums", numbers >= 2 and 120 < len(prompt) < 1000 and re.search("[Hh]ow (many|much)", prompt) is not None),
        ("numbers", numbers >= 2 and 90 < len(prompt) < 1000),
        ("passages", len(prompt) > 500),
        ("searches", prompt[:1].islower() and "?" not in prompt),
        ("trivia", _ASKS.match(prompt) is not None and _NAMED.search(prompt) is not None),
    )  # fmt: skip
    return next((name for name, fits in rules if fits), "common sense")


def soft_logistic(
    rows: FloatArray, shares: FloatArray, weights: FloatArray, penalty: float
) -> tuple[FloatArray, float]:
    """Return the coefficients and the bias of a logistic function of the rows, by Newton's method."""
    design = np.hstack([rows, np.ones((len(rows), 1))])
    precision = np.full(design.shape[1], penalty)
    precision[-1] = 1e-6
    found = np.zeros(design.shape[1])
    for _ in range(30):
        sure = 1 / (1 + np.exp(-np.clip(design @ found, -20, 20)))
        slope = design.T @ (weights * (shares - sure)) - precision * found
        curvature = (design * (weights * sure * (1 - sure))[:, None]).T @ design + np.diag(precision)
        step = np.linalg.solve(curvature, slope)
        found = found + step / max(1.0, float(np.abs(step).max()))
    return found[:-1], float(found[-1])


def ridge(rows: FloatArray, wanted: FloatArray, penalty: float) -> FloatArray:
    """Return the coefficients of rows with mean zero."""
    return np.asarray(np.linalg.solve(rows.T @ rows + penalty * np.eye(rows.shape[1]), rows.T @ wanted))


def by_group(values: FloatArray, groups: Names) -> FloatArray:
    """Return the mean of each value's group."""
    means = np.zeros_like(values)
    for name in set(groups):
        means[groups == name] = values[groups == name].mean(0)
    return means


def fit_task(graded: Graded, tasks: Graded, rarity: Commonness, rates: Scale) -> tuple[FloatArray, float]:
    asked = read([*graded.texts, *tasks.texts], rarity)
    structure = structure_of(asked.features, asked.lengths, rates)
    copies, count, width = structure.shape
    caps = np.array([KIND_CAPS.get(kind, MOST_GRADE) for kind in graded.kinds])
    shares = np.concatenate([np.minimum(graded.grades, caps), tasks.grades])
    weights = np.concatenate([np.ones(len(graded.texts)), np.full(len(tasks.texts), TASK_WEIGHT)])
    rows = structure.reshape(copies * count, width)
    return soft_logistic(rows, np.tile(shares, copies), np.tile(weights, copies) / copies, PENALTY)


def fit_gain(asked: Readings, gain: FloatArray, forms: Names, rates: Scale) -> FloatArray:
    """Return weights of the structure that rank the prompts of each form. Differences between forms teach nothing."""
    structure = structure_of(asked.features, asked.lengths, rates)
    copies, count, width = structure.shape
    rows = (structure - by_group(structure[0], forms)).reshape(copies * count, width)
    weights = ridge(rows, np.tile(gain - by_group(gain, forms), copies), RIDGE / 4 * copies)
    return weights * (LEARNT / float((structure[0] @ weights).std()))


def fit_open(
    asked: Readings, gain: FloatArray, forms: Names, graded: Graded, tasks: Graded, rarity: Commonness
) -> tuple[Scale, OpenWeights]:
    own = read(graded.texts, rarity)
    own_rates = own.features[0][:, [NAMES.index(name) for name in RATES]]
    rates = Scale(own_rates.mean(0), own_rates.std(0))
    task, bias = fit_task(graded, tasks, rarity, rates)
    weights = OpenWeights(task, bias, MOST_TASK, LENGTH, fit_gain(asked, gain, forms, rates), 1.0, 0.0)
    slope, shift = fit_platt(
        weights(structure_of(own.features[0], own.lengths[0], rates), own.lengths[0]), graded.grades
    )
    return rates, replace(weights, slope=slope, bias=shift)


def fit_exam(asked: Readings, gain: FloatArray, rates: Scale, options: Scale) -> ExamWeights:
    copies, count, _ = asked.features.shape
    rows = exam_rows(asked, rates, options).reshape(copies * count, -1)
    lengths = ((asked.lengths - asked.lengths[0].mean()) / asked.lengths[0].std()).ravel()
    wanted = np.tile(gain, copies)
    rest = wanted - np.polyval(np.polyfit(lengths, wanted, 1), lengths)
    centre = rows.mean(0)
    weights = ridge(rows - centre, rest, RIDGE * copies)
    weights = weights * (EXAM_LEARNT / float((rows[:count] @ weights).std()))
    length = 1.0 / float(asked.lengths[0].std())
    ranking = ExamWeights(length, weights, 0.0)
    slope, shift = fit_platt(ranking(rows[:count], asked.lengths[0]), (gain > 0).astype(float))
    return ExamWeights(slope * length, slope * weights, shift)


def exam_rows(asked: Readings, rates: Scale, options: Scale) -> FloatArray:
    return np.concatenate(
        [structure_of(asked.features, asked.lengths, rates), options(asked.options, MAX_DEVIATIONS)], axis=-1
    )


def exam_scores(weights: ExamWeights, asked: Readings, rates: Scale, options: Scale) -> FloatArray:
    """Return the scores of exam questions in [0, 1], (n,), as the gateway computes them."""
    logits = weights(exam_rows(asked, rates, options)[0], asked.lengths[0])
    return np.asarray(1 / (1 + np.exp(-logits)))


def option_scale(asked: Readings) -> Scale:
    unsteady = np.array([name in UNSTEADY for name in OPTION_NAMES])
    return Scale(asked.options[0].mean(0), np.where(unsteady, IGNORED, asked.options[0].std(0) + 1e-6))


def fit_platt(scores: FloatArray, shares: FloatArray) -> tuple[float, float]:
    """Return the slope and shift that make scores the logits of the shares (Platt 1999)."""
    scale, centre = float(scores.std()), float(scores.mean())
    found, bias = soft_logistic(((scores - centre) / scale)[:, None], shares, np.ones(len(scores)), 1e-6)
    slope = float(found[0]) / scale
    return slope, bias - slope * centre


@dataclass(frozen=True, slots=True)
class Tables:
    """The outcomes that may be used."""

    exam: Readings
    exam_gain: FloatArray
    exam_characters: FloatArray
    subjects: Names
    open: Readings
    outcomes: FloatArray  # (n, models)
    open_characters: FloatArray
    forms: Names

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs (light, large) with a gap, as columns of `outcomes`."""
        means, count = self.outcomes.mean(0), range(self.outcomes.shape[1])
        return [(a, b) for a in count for b in count if means[b] - means[a] > MIN_GAP]

    @property
    def open_gain(self) -> FloatArray:
        """The mean gain of the pairs, (n,)."""
        return np.asarray(np.mean([self.outcomes[:, b] - self.outcomes[:, a] for a, b in self.pairs], axis=0))


def load_tables(outcomes: Path, many: Path, rarity: Commonness) -> Tables:
    rows = gaps.rows(outcomes)
    exam = read([row["prompt"] for row in rows], rarity)
    lettered = exam.options[0].any(axis=1)
    prompts, _, scores = gaps.many_models(many)
    return Tables(
        exam=exam.at(lettered),
        exam_gain=np.array([float(row["strong"]) - float(row["weak"]) for row in rows])[lettered],
        exam_characters=np.array([float(len(row["prompt"])) for row in rows])[lettered],
        subjects=np.array([row["domain"] for row in rows])[lettered],
        open=read(prompts, rarity),
        outcomes=scores,
        open_characters=np.array([float(len(prompt)) for prompt in prompts]),
        forms=np.array([form_of(prompt) for prompt in prompts]),
    )


def train(tables: Tables, graded: Graded, tasks: Graded, rarity: Commonness) -> PriorWeights:
    rates, open_ = fit_open(tables.open, tables.open_gain, tables.forms, graded, tasks, rarity)
    options = option_scale(tables.exam)
    return PriorWeights("", rates, options, open_, fit_exam(tables.exam, tables.exam_gain, rates, options))


def show_exam(tables: Tables, weights: PriorWeights) -> None:
    """Print the advantage over length on half of the subjects, by weights of the other half."""
    names, found = np.array(sorted(set(tables.subjects))), []
    for seed in range(HALVES):
        half = np.random.default_rng(seed).permutation(len(names))[: len(names) // 2]
        held = np.isin(tables.subjects, names[half])
        seen = tables.exam.at(~held)
        options = option_scale(seen)
        fitted = fit_exam(seen, tables.exam_gain[~held], weights.rates, options)
        asked = tables.exam.at(held)
        score = exam_scores(fitted, asked, weights.rates, options)
        light, large = np.zeros(held.sum()), tables.exam_gain[held]
        found.append((gaps.apgr(score, light, large), gaps.apgr(tables.exam_characters[held], light, large)))
    own, length = np.mean(found, axis=0)
    over = [a - b for a, b in found]
    print(
        f"MMLU, {len(found)} halves of the subjects, each by weights of the other half: APGR {own:.3f}, "
        f"length {length:.3f}"
    )
    print(f"above length: mean {np.mean(over):+.3f}, least {min(over):+.3f}\n")


def held_out_scores(tables: Tables, graded: Graded, tasks: Graded, rarity: Commonness) -> tuple[FloatArray, FloatArray]:
    """Return the logits of all open prompts by weights without their form, and those of length and structure alone."""
    gain = tables.open_gain
    score, prior = np.zeros(len(gain)), np.zeros(len(gain))
    for form in sorted(set(tables.forms)):
        held = tables.forms == form
        rates, fitted = fit_open(tables.open.at(~held), gain[~held], tables.forms[~held], graded, tasks, rarity)
        lengths = tables.open.lengths[0][held]
        structure = structure_of(tables.open.features[0][held], lengths, rates)
        score[held] = fitted(structure, lengths)
        prior[held] = replace(fitted, learnt=np.zeros(len(STRUCTURE_NAMES)))(structure, lengths)
    return score, prior


def show_open(tables: Tables, graded: Graded, tasks: Graded, rarity: Commonness) -> None:
    """Print the value of the score on each form, by weights without that form, and on all of them."""
    forms, pairs, gain = sorted(set(tables.forms)), tables.pairs, tables.open_gain
    score, prior = held_out_scores(tables, graded, tasks, rarity)

    def lift(by: FloatArray, held: npt.NDArray[np.bool_]) -> float:
        """The mean gain of large answers over a random choice of as many, in hundredths."""
        ranks = (np.argsort(np.argsort(by[held], kind="stable")) + 0.5) / held.sum() - 0.5
        return 100 * float((gain[held] * ranks).mean())

    print("| form, held out | prompts | length | length and structure | with the learnt part |")
    print("|---|---|---|---|---|")
    for form in forms:
        held = tables.forms == form
        said = " | ".join(f"{lift(by, held):+.1f}" for by in (tables.open_characters, prior, score))
        print(f"| {form} | {held.sum()} | {said} |")
    areas = np.array([
        [gaps.apgr(by, tables.outcomes[:, a], tables.outcomes[:, b]) for by in (tables.open_characters, prior, score)]
        for a, b in pairs
    ])  # fmt: skip
    length, without, own = areas.mean(0)
    below = int((areas[:, 2] < areas[:, 0]).sum())
    print(f"\nall forms, {len(pairs)} pairs: APGR {own:.3f}, length and structure {without:.3f}, length {length:.3f}; "
          f"{below} pairs below length")  # fmt: skip


def save(weights: PriorWeights, counts: dict[str, int], directory: Path) -> None:
    path = directory / TRAINED.arrays_file
    np.savez_compressed(path, **arrays_of(weights))  # type: ignore[arg-type]
    about = {
        "version": 1, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size,
        "numbers": numbers_of(weights), **counts, "licence": "Apache-2.0", "made_from": CREDITS,
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }  # fmt: skip
    (directory / TRAINED.about_file).write_text(json.dumps(about, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=Path, required=True, help="routellm_outcomes.jsonl.gz")
    parser.add_argument("--many", type=Path, required=True, help="router_outcomes2.jsonl.gz")
    parser.add_argument(
        "--tables", action="store_true", help="print the value on benchmarks held out, and write nothing"
    )
    parser.add_argument(
        "--held-out", type=Path, help="write the scores of the many models' prompts here, by weights without their form"
    )
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    rarity = load_weights().rarity
    tables, graded, tasks = (
        load_tables(arguments.outcomes, arguments.many, rarity),
        load_graded(GRADED),
        load_graded(TASKS),
    )
    if arguments.held_out is not None:
        logits, _ = held_out_scores(tables, graded, tasks, rarity)
        arguments.held_out.write_text(json.dumps((1 / (1 + np.exp(-logits))).round(6).tolist()))
        return
    weights = train(tables, graded, tasks, rarity)
    if arguments.tables:
        show_exam(tables, weights)
        show_open(tables, graded, tasks, rarity)
        return
    counts = {
        "outcomes": len(tables.exam_gain), "many": len(tables.open_gain), "graded": len(graded.texts),
        "tasks": len(tasks.texts),
    }  # fmt: skip
    save(weights, counts, arguments.out)


if __name__ == "__main__":
    main()
