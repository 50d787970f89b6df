"""Measures the choice between a light and a large model, on recorded outcomes of many models.

    python -m quality.complexity DATA                      # DATA: router_outcomes2.jsonl.gz

It prints the tables of docs/quality.md, "The choice of the model". It also adapts the scorer to the evaluation's
`router_eval.py`; run that from the repository's root.

    EVAL=folder of the evaluation tools
    .venv/bin/python $EVAL/router_eval.py --predictor quality.complexity:score             # the shipped weights
    .venv/bin/python $EVAL/router_eval.py --trainer quality.complexity:fit                 # subjects held out

The shipped weights were fitted on the prompts of both files, so they need other prompts to measure unseen ones.
`training.prompt_prior --tables` holds benchmarks out. NEARHIT_MODEL_DIR is the folder of the embedding models, if not
the default.
"""

# ruff: noqa: T201, S311 (a command prints; drawn changes of texts)
from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import MODEL
from gateway.routing.complexity import WEIGHTS, ComplexityModel, build_complexity, load_weights
from gateway.routing.prompt_features import FloatArray
from gateway.routing.prompt_prior import load_prior
from gateway.routing.route_fit import LabelArrays, RouteFit, fit_models, judge_fit
from gateway.routing.route_score import MIN_LABELS
from gateway.scores import ScoredPrompt
from training.gaps import apgr, calibration, many_models
from training.perturb import typo
from training.prompt_prior import exam_scores, fit_exam, option_scale, read

MODELS = Path(os.environ.get("NEARHIT_MODEL_DIR", ".venv/share/nearhit/models"))
Score = Callable[[Sequence[str]], list[float]]

STEPS = 10  # of the curve, as in `router_eval.py`
# Billions of parameters, as the cost of a call.
SIZES = {
    "codegemma-7b": 7, "gemma-2-9b-it": 9, "llama-3.1-8b-instruct": 8, "llama-3.1-nemotron-51b-instruct": 51,
    "llama-3.3-nemotron-super-49b-v1": 49, "llama3-chatqa-1.5-70b": 70, "llama3-chatqa-1.5-8b": 8,
    "mistral-7b-instruct-v0.3": 7, "qwen2.5-7b-instruct": 7,
}  # fmt: skip
LEARNED = (
    ("mistral-7b-instruct-v0.3", "llama-3.1-nemotron-51b-instruct"),
    ("llama-3.1-8b-instruct", "llama-3.1-nemotron-51b-instruct"),
)
LABELS = (MIN_LABELS, 1000, 4000)
SPLITS = 10
PERTURBED = 600
BRITISH = {
    "color": "colour", "center": "centre", "favorite": "favourite", "neighbor": "neighbour", "organize": "organise",
    "realize": "realise", "traveled": "travelled", "meter": "metre", "meters": "metres", "analyze": "analyse",
    "labor": "labour", "defense": "defence", "honor": "honour", "flavor": "flavour", "theater": "theatre",
    "gray": "grey", "liters": "litres", "practice": "practise", "program": "programme", "percent": "per cent",
}  # fmt: skip


def score(prompts: Sequence[str]) -> list[float]:
    return [each.score for each in judge_all(_shipped_model(), prompts)]


def fit(rows: Sequence[dict[str, Any]]) -> Score:
    """Train on rows with `prompt`, `weak`, `strong` and `domain`, and return the scorer."""
    shipped, rarity = load_prior(WEIGHTS), load_weights().rarity
    asked = read([row["prompt"] for row in rows], rarity)
    gain = np.array([float(row["strong"]) - float(row["weak"]) for row in rows])
    options = option_scale(asked)
    weights = fit_exam(asked, gain, shipped.rates, options)
    return lambda prompts: exam_scores(weights, read(prompts, rarity), shipped.rates, options).tolist()


def _shipped_model() -> tuple[ComplexityModel, OnnxEncoder]:
    encoder = OnnxEncoder(MODELS / MODEL)
    return build_complexity(encoder.fingerprint), encoder


def judge_all(scorer: tuple[ComplexityModel, OnnxEncoder], prompts: Sequence[str]) -> list[ScoredPrompt]:
    model, encoder = scorer

    def judge(prompt: str) -> ScoredPrompt:
        embedding = encoder.encode([prompt])[0]
        return model.judge(prompt, None, None if embedding.unreadable else embedding.vector)

    return [judge(prompt) for prompt in prompts]


def show_pairs(scores: FloatArray, length: FloatArray, outcomes: Mapping[str, FloatArray]) -> None:
    """Print every pair, and the best single model whose calls cost no more than half of each."""
    print(
        "| light -> large | gap | APGR | length | half to the large one is right | one model at the cost | is right |"
    )
    print("|---|---|---|---|---|---|---|")
    means = {name: float(right.mean()) for name, right in outcomes.items()}
    pairs = [(a, b) for a in outcomes for b in outcomes if means[b] > means[a]]
    half, below = scores > np.median(scores), 0
    for light, large in pairs:
        both = outcomes[light], outcomes[large]
        own, by_length = apgr(scores, *both, STEPS), apgr(length, *both, STEPS)
        below += own < by_length
        routed = float(np.where(half, both[1], both[0]).mean())
        cost = (SIZES[light] + SIZES[large]) / 2
        best = max((name for name in outcomes if SIZES[name] <= cost), key=means.__getitem__)
        said = f"{best} | {means[best]:.3f}" if means[best] > routed else "none better |"
        gap = means[large] - means[light]
        print(f"| {light} -> {large} | {gap:.3f} | {own:.3f} | {by_length:.3f} | {routed:.3f} | {said} |")
    print(f"\n{below} of {len(pairs)} pairs below length\n")


def labels_of(prompts: Sequence[ScoredPrompt], gains: FloatArray) -> LabelArrays:
    rest = np.stack([[p.score for p in prompts], gains, np.ones(len(gains))], axis=1)
    return LabelArrays(np.array([p.row for p in prompts]), rest.astype(np.float32))


def show_learned(prompts: Sequence[ScoredPrompt], outcomes: Mapping[str, FloatArray]) -> None:
    """Print the value of labels of a random part on the rest: means of the splits, and how many pass the gate.

    A label has three values: the large model's answer is better, equal or worse, as a judge of the audits tells.
    """
    print("| light -> large | labels | APGR before | after | with the gate | passed | passed, labels shuffled | ECE |")
    print("|---|---|---|---|---|---|---|---|")
    for light, large in LEARNED:
        given = labels_of(prompts, outcomes[large] - outcomes[light])
        for count in LABELS:
            found = [_split(given, outcomes[light], outcomes[large], count, seed) for seed in range(SPLITS)]
            before, after, gated, passed, by_chance, error = np.mean(found, axis=0)
            print(
                f"| {light} -> {large} | {count} | {before:.3f} | {after:.3f} | {gated:.3f} | {passed:.0%} "
                f"| {by_chance:.0%} | {error:.3f} |"
            )
    print()


def _split(given: LabelArrays, light: FloatArray, large: FloatArray, count: int, seed: int) -> tuple[float, ...]:
    order = np.random.default_rng(seed).permutation(len(given))
    seen, rest = order[:count], order[count:]
    labels, asked = (LabelArrays(given.rows[at], given.rest[at]) for at in (seen, rest))
    judged = judge_fit(labels)
    own = RouteFit(fit_models(labels), judged.blend).scores(asked.rows, asked.rest[:, 0].astype(float))
    before, after = (apgr(scores, light[rest], large[rest], STEPS) for scores in (asked.logits, own))
    shuffled = labels.rest.copy()
    np.random.default_rng(seed).shuffle(shuffled[:, 1])
    by_chance = judge_fit(LabelArrays(labels.rows, shuffled)).passes
    error, _ = calibration(own, (asked.gains > 0).astype(float))
    return before, after, after if judged.passes else before, float(judged.passes), float(by_chance), error


def changes(draw: random.Random) -> Mapping[str, Callable[[str], str]]:
    def british(text: str) -> str:
        return " ".join(BRITISH.get(word, word) for word in text.split(" "))

    return {
        "lower case": str.lower,
        "upper case": str.upper,
        "please before": lambda text: f"Please, {text[:1].lower()}{text[1:]}",
        "could you": lambda text: f"Could you please tell me: {text}",
        "thanks after": lambda text: f"{text} Thank you!",
        "no final mark": lambda text: text.rstrip("?.! "),
        "no punctuation": lambda text: re.sub(r"[^\w\s]", "", text),
        "double spaces": lambda text: text.replace(" ", "  "),
        "British spelling": british,
        "one typing error": lambda text: typo(text, draw) or text,
        "three typing errors": lambda text: _times(text, draw, 3),
    }


def _times(text: str, draw: random.Random, count: int) -> str:
    for _ in range(count):
        text = typo(text, draw) or text
    return text


def show_robustness(scorer: tuple[ComplexityModel, OnnxEncoder], prompts: Sequence[str], scores: FloatArray) -> None:
    """Print how often a change of the wording leaves the choice at the median threshold as it is."""
    print("| change | changed prompts | choice unchanged |")
    print("|---|---|---|")
    threshold = float(np.median(scores))
    sample = np.random.default_rng(0).permutation(len(prompts))[:PERTURBED]
    for name, change in changes(random.Random(0)).items():
        pairs = [(at, change(prompts[at])) for at in sample]
        pairs = [(at, text) for at, text in pairs if text != prompts[at]]
        found = judge_all(scorer, [text for _, text in pairs])
        same = [(p.score > threshold) == (scores[at] > threshold) for p, (at, _) in zip(found, pairs, strict=True)]
        print(f"| {name} | {len(same)} | {np.mean(same):.1%} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="router_outcomes2.jsonl.gz")
    parser.add_argument(
        "--held-out", type=Path, help="scores of `training.prompt_prior --held-out`, in the place of the shipped ones"
    )
    arguments = parser.parse_args()
    prompts, models, right = many_models(arguments.data)
    outcomes = {name: right[:, at] for at, name in enumerate(models)}
    scorer = _shipped_model()
    found = judge_all(scorer, prompts)
    scores = np.array([each.score for each in found])
    show_robustness(scorer, prompts, scores)
    if arguments.held_out is not None:
        unseen = json.loads(arguments.held_out.read_text())
        found = [ScoredPrompt(float(at), each.row) for at, each in zip(unseen, found, strict=True)]
        scores = np.array([each.score for each in found])
    show_pairs(scores, np.array([len(prompt) for prompt in prompts], float), outcomes)
    show_learned(found, outcomes)


if __name__ == "__main__":
    main()
