"""Measures a complexity score on recorded outcomes: the share of the gap between two models that it recovers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.routing.prompt_features import FloatArray

Curve = tuple[FloatArray, FloatArray]
RESAMPLES = 400
BINS = 10


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines: objects with `prompt` and outcomes."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def many_models(path: Path) -> tuple[list[str], list[str], FloatArray]:
    """Return prompts, models and scores (n, m)."""
    found = rows(path)
    models = sorted(found[0]["scores"])
    return [row["prompt"] for row in found], models, np.array([[row["scores"][m] for m in models] for row in found])


def random_folds(count: int, folds: int, seed: int = 0) -> npt.NDArray[np.int_]:
    return np.random.default_rng(seed).permutation(count) % folds


def domain_folds(domains: npt.NDArray[np.str_], groups: int) -> npt.NDArray[np.int_]:
    """Return (n,): folds in 0..groups-1, as `router_eval.py` cuts them."""
    names = sorted(set(domains))
    return np.array([names.index(domain) % groups for domain in domains])


def curve(score: FloatArray, light: FloatArray, large: FloatArray, steps: int | None = None) -> Curve:
    """Return the shares of the large model and the recovered parts of the gap between both models.

    The prompts of the highest scores go to the large model: from none to all, at every prompt or at so many even
    steps. Equal scores keep the order in which they are given.
    """
    gain = (large - light)[np.argsort(-score, kind="stable")]
    recovered = np.concatenate([[0.0], np.cumsum(gain)]) / gain.sum()
    shares = np.linspace(0, 1, len(recovered))
    if steps is None:
        return shares, recovered
    at = np.round(np.linspace(0, len(gain), steps + 1)).astype(int)
    return shares[at], recovered[at]


def apgr(score: FloatArray, light: FloatArray, large: FloatArray, steps: int | None = None) -> float:
    """Return the area under that curve; by chance .5 (RouteLLM, Ong et al. 2024, section 4).

    `router_eval.py` takes ten steps.
    """
    shares, recovered = curve(score, light, large, steps)
    return float(np.trapezoid(recovered, shares))


def interval(statistic: Callable[[npt.NDArray[np.int_]], float], count: int) -> tuple[float, float]:
    """Return the central 95 % over resampled prompts."""
    random = np.random.default_rng(0)
    found = [statistic(random.integers(0, count, count)) for _ in range(RESAMPLES)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def calibration(score: FloatArray, truth: FloatArray) -> tuple[float, list[tuple[float, float, int]]]:
    """Return the expected calibration error over ten bins of equal size, and the values of each bin.

    A bin has its mean score, its observed share and its size.
    """
    parts = np.array_split(np.argsort(score, kind="stable"), BINS)
    bins = [(float(score[part].mean()), float(truth[part].mean()), len(part)) for part in parts]
    return sum(abs(said - seen) * size for said, seen, size in bins) / len(score), bins


def figures(score: FloatArray, light: FloatArray, large: FloatArray, prompts: Sequence[str]) -> dict[str, Any]:
    length = np.array([len(prompt) for prompt in prompts], float)

    def area(at: npt.NDArray[np.int_]) -> float:
        return apgr(score[at], light[at], large[at])

    def above_length(at: npt.NDArray[np.int_]) -> float:
        return area(at) - apgr(length[at], light[at], large[at])

    everything = np.arange(len(score))
    error, bins = calibration(score, (large > light).astype(float))
    return {
        "apgr": area(everything),
        "interval": interval(area, len(score)),
        "over_length": above_length(everything),
        "over_length_interval": interval(above_length, len(score)),
        "ece": error,
        "bins": bins,
    }


def show(
    found: dict[str, Any],
    light: FloatArray,
    large: FloatArray,
    prompts: Sequence[str],
    domains: npt.NDArray[np.str_],
) -> None:
    """Print the tables, beside their bounds: the oracle, prompt length, and every subject's own mean gap."""
    gain, length = large - light, np.array([len(prompt) for prompt in prompts], float)
    own = {name: gain[domains == name].mean() for name in set(domains)}
    by_subject = np.array([own[name] for name in domains]) + 1e-9 * np.random.default_rng(0).random(len(gain))
    print(f"{len(gain)} prompts, light {light.mean():.3f} right, large {large.mean():.3f}")  # noqa: T201
    for name, score in (("oracle", gain), ("each subject's mean gap, known", by_subject), ("length", length)):
        low, high = interval(lambda at, by=score: apgr(by[at], light[at], large[at]), len(gain))  # type: ignore[misc]
        print(f"{name:<32} APGR {apgr(score, light, large):.3f} [{low:.3f}, {high:.3f}]")  # noqa: T201
    for name, each in found.items():
        (low, high), (least, most) = each["interval"], each["over_length_interval"]
        print(  # noqa: T201
            f"{name:<32} APGR {each['apgr']:.3f} [{low:.3f}, {high:.3f}], above length {each['over_length']:+.3f} "
            f"[{least:+.3f}, {most:+.3f}], ECE {each['ece']:.3f}"
        )
    for name, each in found.items():
        said = "  ".join(f"{mean:.2f}/{seen:.2f}" for mean, seen, _ in each["bins"])
        print(f"{name:<32} said/seen  {said}")  # noqa: T201
