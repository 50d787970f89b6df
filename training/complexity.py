"""Trains the arm of complexity: `python -m training.complexity --outcomes JSONL.GZ --many JSONL.GZ --model DIR`.

The shipped score is that of `training.prompt_prior`. These weights were worse on benchmarks that they had not seen.
They stay as an arm, whose logit a route's own fit may use.

It uses data that may ship. They are RouteLLM's outcomes of two models on MMLU subjects (Apache-2.0) and LLMRouter's
outcomes of nine models (MIT). Our own prompts, graded by hand, are in prompts/graded.txt. Its draws have fixed seeds,
so one set of versions gives the same weights.

`--tables` also prints the value of the scores on subjects that were held out (leave-domains-out), and on seen ones
(in-domain). The first has five groups of subjects, each judged by weights without them. The second has five random
folds. The nine models' pairs come from three cuts into five random folds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn
from sklearn.linear_model import LogisticRegression, Ridge

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.entries import Vector
from gateway.routing.complexity import (
    TRAINED,
    VARIANTS,
    WEIGHTS,
    ComplexityWeights,
    Linear,
    Standard,
    Variant,
    sigmoid,
)
from gateway.routing.prompt_features import NAMES, OPTION_NAMES, Commonness, FloatArray, PromptReading
from training import gaps, many_models
from training.many_models import ManyOutcomes, Part
from training.perturb import typo

HERE = Path(__file__).parent
ENCODER, DIMENSION = "all-MiniLM-L6-v2", 384
COMMON_WORDS = 12_000  # of the tokenizer's vocabulary, which is in order of frequency
FIRST_WORD = 1996  # before it: marks, digits, single letters
# Chosen over four cuts of the subjects into five groups. Embeddings are unit vectors: their factor sets how far they
# may speak beside the features. More than this fits subjects, and loses on others.
OPEN_RIDGE, OPEN_FEATURES, OPEN_VECTOR, MANY_VECTOR = 60.0, 0.3, 3.0, 2.0
EXAM_VECTOR, WRONG_C, ABLE_C = 6.0, 0.001, 0.0005
# How far the fitted part is believed, and the graded part beside it. Fitted for each fold anew they lay between .4 and
# 1.2, by which large subject was missing, and scores of different folds did not compare: APGR .569 instead of .591.
TRUST, PRIOR = 0.8, 0.12
GROUPS = 5
CUTS = 3  # one cut into random folds gives between 7 and 10 pairs below length
TYPING_ERRORS = 3
# Features that another case of the same words changes say too little to let it change the choice of a model.
CASED = np.array([name in ("shouted", "roman", "capitals", "acronyms") for name in NAMES])
IGNORED = 1e9  # a deviation: scaled values are zero
CREDITS = {
    "outcomes": "lm-sys/RouteLLM, routellm/evals, Apache-2.0 (MMLU: MIT)",
    "outcomes of many models": "ulab-uiuc/LLMRouter, data/dcrouter_preprocessed/train.json, MIT",
    "graded prompts": "our own, written and graded by hand (training/prompts/graded.txt)",
    "common words": "the vocabulary of all-MiniLM-L6-v2, Apache-2.0",
}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """n prompts that two models answered."""

    prompts: Sequence[str]
    features: FloatArray  # (n, k), of the text and of the options
    vectors: FloatArray  # (n, d)
    light: FloatArray  # (n,) 1.0 right, 0.0 wrong
    large: FloatArray
    domains: npt.NDArray[np.str_]
    exam: npt.NDArray[np.bool_]  # (n,) whether their form is that of a multiple-choice question: fitted on these alone

    def at(self, chosen: npt.NDArray[Any]) -> Outcomes:
        where = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        prompts = [self.prompts[int(at)] for at in where]
        rest = (self.features, self.vectors, self.light, self.large, self.domains, self.exam)
        return Outcomes(prompts, *(each[where] for each in rest))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class GradedPrompts:
    features: FloatArray
    vectors: FloatArray
    logits: FloatArray


def common_words(model: Path) -> list[str]:
    vocabulary = json.loads((model / "tokenizer.json").read_bytes())["model"]["vocab"]
    listed = sorted(vocabulary.items(), key=lambda pair: pair[1])
    words = [word for word, at in listed if at >= FIRST_WORD and word.isascii() and word.isalpha() and len(word) > 1]
    return words[:COMMON_WORDS]


def vectors_of(encoder: OnnxEncoder, texts: Sequence[str]) -> FloatArray:
    return np.array([encoder.encode([text])[0].vector for text in texts], np.float64)


def load_graded(encoder: OnnxEncoder, rarity: Commonness) -> GradedPrompts:
    lines = (HERE / "prompts" / "graded.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" ", 2) for line in lines if line and not line.startswith("#")]
    texts = [text.replace("\\n", "\n") for _, _, text in rows]
    share = np.array([int(tenths) / 10 for _, tenths, _ in rows])
    features = np.array([PromptReading(text, rarity).features for text in texts])
    # 0 of ten and 10 of ten are guesses, too: never quite sure.
    return GradedPrompts(features, vectors_of(encoder, texts), np.log((share + 0.03) / (1.03 - share)))


def read_outcomes(rows: Sequence[dict[str, Any]], encoder: OnnxEncoder, rarity: Commonness) -> Outcomes:
    read = [PromptReading(row["prompt"], rarity) for row in rows]
    none = np.zeros(len(OPTION_NAMES))
    return Outcomes(
        prompts=[row["prompt"] for row in rows],
        features=np.array([np.concatenate([r.features, none if r.options is None else r.options]) for r in read]),
        vectors=vectors_of(encoder, [row["prompt"] for row in rows]),
        light=np.array([row["weak"] for row in rows], float),
        large=np.array([row["strong"] for row in rows], float),
        domains=np.array([row["domain"] for row in rows]),
        exam=np.array([r.options is not None for r in read]),
    )


def read_many_outcomes(path: Path, encoder: OnnxEncoder, rarity: Commonness) -> ManyOutcomes:
    prompts, models, scores = gaps.many_models(path)
    draw = random.Random(1)  # noqa: S311

    def read(texts: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        return np.array([PromptReading(text, rarity).features for text in texts]), vectors_of(encoder, texts)

    changed = [[add_typos(prompt, draw) for prompt in prompts], [prompt.rstrip("?.! ") for prompt in prompts]]
    return ManyOutcomes(prompts, *read(prompts), models, scores, [read(texts) for texts in changed])


def add_typos(text: str, draw: random.Random) -> str:
    for _ in range(TYPING_ERRORS):
        text = typo(text, draw) or text
    return text


def standard_scale(values: FloatArray) -> Standard:
    return Standard(values.mean(0), values.std(0) + 1e-6)


def join(features: FloatArray, vectors: FloatArray, variant: str, factors: tuple[float, float]) -> FloatArray:
    scaled = features * factors[0]
    return scaled if variant == "text" else np.hstack([scaled, vectors * factors[1]])


def linear(coefficients: FloatArray, bias: float, width: int, variant: str, factors: tuple[float, float]) -> Linear:
    vector = None if variant == "text" else coefficients[width:] * factors[1]
    return Linear(coefficients[:width] * factors[0], vector, bias)


def apply(weights: Linear, features: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return (n,): the value of `Linear` for each row."""
    value = features @ weights.features + weights.bias
    return np.asarray(value if weights.vector is None else value + vectors @ weights.vector)


def open_head(given: GradedPrompts, scale: Standard, variant: str) -> Linear:
    factors = (OPEN_FEATURES, OPEN_VECTOR)
    model = Ridge(OPEN_RIDGE).fit(join(scale(given.features), given.vectors, variant, factors), given.logits)
    return linear(model.coef_, float(model.intercept_), len(NAMES), variant, factors)


def ranking_head(given: GradedPrompts, many: ManyOutcomes, scale: Standard, variant: str) -> Linear:
    """Return the graded prompts' head plus the ranking of many models' prompts, calibrated on the grades."""
    factors = (1.0, MANY_VECTOR)
    begin = open_head(given, scale, variant)

    def part(features: FloatArray, vectors: FloatArray) -> Part:
        rows = scale(features)
        return Part(join(rows, vectors, variant, factors), apply(begin, rows, vectors))

    asked, graded_ = part(many.features, many.vectors), part(given.features, given.vectors)
    moved = many_models.moves(asked, [part(*spelling) for spelling in many.spellings])
    weights = many_models.gain_head(asked, moved, many, graded_, given.logits)
    slope, shift = fit_platt(graded_.offset + graded_.rows @ weights, 1.0 / (1.0 + np.exp(-given.logits)))
    added = linear(weights, 0.0, len(NAMES), variant, factors)
    features = slope * (begin.features + added.features)
    if begin.vector is None or added.vector is None:
        return Linear(features, None, slope * begin.bias + shift)
    return Linear(features, slope * (begin.vector + added.vector), slope * begin.bias + shift)


def fit_platt(scores: FloatArray, shares: FloatArray) -> tuple[float, float]:
    """Return the slope and shift that make scores the logits of the shares (Platt 1999)."""
    design, found = np.stack([scores, np.ones(len(scores))], axis=1), np.array([0.1, 0.0])
    for _ in range(30):
        sure = 1.0 / (1.0 + np.exp(-(design @ found)))
        curvature = design.T @ (design * (sure * (1.0 - sure))[:, None])
        found = found + np.linalg.solve(curvature, design.T @ (shares - sure))
    return float(found[0]), float(found[1])


def exam_heads(seen: Outcomes, scale: Standard, variant: str) -> tuple[Linear, Linear]:
    factors = (1.0, EXAM_VECTOR)
    rows = join(scale(seen.features), seen.vectors, variant, factors)
    wrong = seen.light == 0

    def fit_head(chosen: npt.NDArray[np.bool_], truth: FloatArray, c: float) -> Linear:
        model = LogisticRegression(C=c, max_iter=500).fit(rows[chosen], truth[chosen])
        return linear(model.coef_[0], float(model.intercept_[0]), len(NAMES + OPTION_NAMES), variant, factors)

    return fit_head(np.ones_like(wrong), 1.0 - seen.light, WRONG_C), fit_head(wrong, seen.large, ABLE_C)


def both_logit(heads: tuple[Linear, Linear], scale: Standard, asked: Outcomes) -> FloatArray:
    rows = scale(asked.features)
    both = np.prod([1.0 / (1.0 + np.exp(-apply(head, rows, asked.vectors))) for head in heads], axis=0)
    return np.asarray(np.log(both / (1.0 - both)))


def offset(logits: FloatArray, truth: FloatArray) -> float:
    """Return the offset at which the mean probability is the mean truth, by Newton's method."""
    added = 0.0
    for _ in range(30):
        sure = 1.0 / (1.0 + np.exp(-(logits + added)))
        added -= float((sure.mean() - truth.mean()) / (sure * (1.0 - sure)).mean())
    return added


def pooled_scale(one: FloatArray, other: FloatArray) -> Standard:
    """Scale features by two sources of the same weight, whatever their sizes."""
    mean = (one.mean(0) + other.mean(0)) / 2
    variance = (((one - mean) ** 2).mean(0) + ((other - mean) ** 2).mean(0)) / 2
    return Standard(mean, np.where(CASED, IGNORED, np.sqrt(variance) + 1e-6))


def train(
    seen: Outcomes, given: GradedPrompts, rarity: Commonness, many: ManyOutcomes | None = None
) -> ComplexityWeights:
    seen = seen.at(seen.exam)
    open_scale = standard_scale(given.features) if many is None else pooled_scale(given.features, many.features)
    exam_scale = standard_scale(seen.features)
    worse = (seen.large > seen.light).astype(float)
    variants = {}
    for name in VARIANTS:
        open_ = open_head(given, open_scale, name) if many is None else ranking_head(given, many, open_scale, name)
        heads = exam_heads(seen, exam_scale, name)
        graded_ = apply(open_, open_scale(seen.features[:, : len(NAMES)]), seen.vectors)
        mixed = TRUST * both_logit(heads, exam_scale, seen) + PRIOR * graded_
        variants[name] = Variant(open_, *heads, (TRUST, PRIOR, offset(mixed, worse)))
    return ComplexityWeights(
        "", ENCODER, DIMENSION, rarity, open_scale, exam_scale, variants["text"], variants["vector"]
    )


def score_all(weights: ComplexityWeights, asked: Outcomes, *, vectors: bool = True) -> FloatArray:
    """Return (n,): scores by the gateway's own evaluator."""

    def score(text: str, vector: Vector) -> float:
        reading = PromptReading(text, weights.rarity)
        return sigmoid(weights.arm(reading, weights.open(reading.features), vector if vectors else None))

    return np.array(
        [score(text, vector) for text, vector in zip(asked.prompts, asked.vectors.astype(np.float32), strict=True)]
    )


def save(weights: ComplexityWeights, words: Sequence[str], figures: dict[str, Any], directory: Path) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {"names": np.array(NAMES + OPTION_NAMES)}
    arrays["words"] = np.frombuffer("\n".join(words).encode("ascii"), np.uint8)
    for form, scale in (("open", weights.open), ("exam", weights.exam)):
        arrays |= {f"{form}/mean": scale.mean, f"{form}/deviation": scale.deviation}
    for name, variant in (("text", weights.text), ("vector", weights.vector)):
        for part, head in (("open", variant.open), ("wrong", variant.wrong), ("able", variant.able)):
            arrays[f"{name}/{part}/features"], arrays[f"{name}/{part}/bias"] = head.features, np.array([head.bias])
            if head.vector is not None:
                arrays[f"{name}/{part}/vector"] = head.vector
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / TRAINED.arrays_file
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    about = {
        "version": 1, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size,
        "encoder": ENCODER, "dimension": DIMENSION,
        "stacks": {"text": weights.text.stack, "vector": weights.vector.stack},
        **figures, "licence": "Apache-2.0", "made_from": CREDITS,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scikit-learn": sklearn.__version__},
    }  # fmt: skip
    (directory / TRAINED.about_file).write_text(json.dumps(about, indent=2) + "\n")


FloatsOf = dict[str, FloatArray]


def held_out_scores(seen: Outcomes, given: GradedPrompts, rarity: Commonness, fold: npt.NDArray[np.int_]) -> FloatsOf:
    """Return, by variant, (n,): each prompt's score by weights that saw none of its fold."""
    scores = {name: np.zeros(len(fold)) for name in VARIANTS}
    for at in range(GROUPS):
        weights, asked = train(seen.at(fold != at), given, rarity), seen.at(fold == at)
        for name in VARIANTS:
            scores[name][fold == at] = score_all(weights, asked, vectors=name == "vector")
    return scores


def tables(seen: Outcomes, given: GradedPrompts, rarity: Commonness) -> dict[str, Any]:
    """Return the value of scores for each way of holding out, with the embedding and without."""
    found = {}
    folds = {
        "leave-domains-out": gaps.domain_folds(seen.domains, GROUPS),
        "in-domain": gaps.random_folds(len(seen.light), GROUPS),
    }
    for how, fold in folds.items():
        for name, scores in held_out_scores(seen, given, rarity, fold).items():
            found[f"{how}, {name}"] = gaps.figures(scores, seen.light, seen.large, seen.prompts)
    # Whether the open form's weights, which saw no outcome, are of use on outcomes at all.
    weights = train(seen, given, rarity)
    rows = weights.open(seen.features[:, : len(NAMES)])
    for name, variant in (("text", weights.text), ("vector", weights.vector)):
        score = 1.0 / (1.0 + np.exp(-apply(variant.open, rows, seen.vectors)))
        found[f"graded prompts alone, {name}"] = gaps.figures(score, seen.light, seen.large, seen.prompts)
    return found


def many_held_out_scores(given: GradedPrompts, many: ManyOutcomes, variant: str, cut: int = 0) -> FloatArray:
    """Return (n,): each prompt's score by an open head that saw none of its fold.

    The levels of different folds are made equal.
    """
    fold, scores = gaps.random_folds(len(many.prompts), GROUPS, cut), np.zeros(len(many.prompts))
    for at in range(GROUPS):
        seen, asked = many.at(fold != at), many.at(fold == at)
        scale = pooled_scale(given.features, seen.features)
        head = ranking_head(given, seen, scale, variant)
        level = apply(head, scale(seen.features), seen.vectors)
        scores[fold == at] = (apply(head, scale(asked.features), asked.vectors) - level.mean()) / level.std()
    return scores


@dataclass(frozen=True, slots=True)
class PairAdvantage:
    """The area of a pair by the score, less that by prompt length."""

    name: str
    length: float  # the area by length
    by_cut: FloatArray  # (cuts,)
    low: float  # 95 % of the mean of the cuts, over resampled prompts
    high: float

    def __str__(self) -> str:
        mean = float(self.by_cut.mean())
        return f"{self.name:<66} {mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}], length {self.length:.3f}"


def advantages(many: ManyOutcomes, scores: Sequence[FloatArray]) -> list[PairAdvantage]:
    """Return the advantage of every pair, the smallest first. `scores`: those of each cut."""

    def of(pair: tuple[int, int]) -> PairAdvantage:
        light, large = (many.scores[:, at] for at in pair)

        def area(score: FloatArray, at: npt.NDArray[np.int_]) -> float:
            return gaps.apgr(score[at], light[at], large[at], 10)

        def above(at: npt.NDArray[np.int_]) -> FloatArray:
            return np.array([area(score, at) for score in scores]) - area(many.lengths, at)

        everything = np.arange(len(light))
        low, high = gaps.interval(lambda at: float(above(at).mean()), len(light))
        name = " -> ".join(many.models[at] for at in pair)
        return PairAdvantage(name, area(many.lengths, everything), above(everything), low, high)

    return sorted(map(of, many.pairs), key=lambda pair: float(pair.by_cut.mean()))


def show_pairs(given: GradedPrompts, many: ManyOutcomes) -> None:
    for variant in VARIANTS:
        found = advantages(many, [many_held_out_scores(given, many, variant, cut) for cut in range(CUTS)])
        above, length = np.array([pair.by_cut for pair in found]), float(np.mean([pair.length for pair in found]))
        print(  # noqa: T201
            f"pairs held out, {variant}: mean APGR {length + above.mean():.3f}, length {length:.3f}, "
            f"{(above.mean(1) < 0).sum()} of {len(found)} below length, in each cut {(above < 0).sum(0).tolist()}"
        )
        for pair in found:
            print(f"    {pair}")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=Path, required=True, help="routellm_outcomes.jsonl.gz")
    parser.add_argument("--many", type=Path, required=True, help="router_outcomes2.jsonl.gz")
    parser.add_argument("--model", type=Path, required=True, help="folder of the embedding model")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--held-out", type=Path, help="write leave-part-out scores of the many models' prompts here")
    parser.add_argument("--tables", action="store_true", help="measure, and write nothing")
    arguments = parser.parse_args()
    encoder, words = OnnxEncoder(arguments.model, threads=2), common_words(arguments.model)
    rarity = Commonness(words)
    given, seen = load_graded(encoder, rarity), read_outcomes(gaps.rows(arguments.outcomes), encoder, rarity)
    many = read_many_outcomes(arguments.many, encoder, rarity)
    if arguments.held_out is not None:
        unseen = {name: 1.0 / (1.0 + np.exp(-many_held_out_scores(given, many, name))) for name in VARIANTS}
        arguments.held_out.write_text(json.dumps({name: each.round(6).tolist() for name, each in unseen.items()}))
        return
    if arguments.tables:
        show_pairs(given, many)
        gaps.show(tables(seen, given, rarity), seen.light, seen.large, seen.prompts, seen.domains)
        return
    weights = train(seen, given, rarity, many)
    counts = {"outcomes": int(seen.exam.sum()), "many": len(many.prompts), "graded": len(given.logits)}
    save(weights, words, counts, arguments.out)


if __name__ == "__main__":
    main()
