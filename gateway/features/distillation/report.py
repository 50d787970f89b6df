"""Reports on a student: agreement with the teacher, accuracy, size and latency."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.wrong_hits import wilson_interval
from gateway.features.distillation.served.classifier import Classifier

TIMED_REQUESTS = 200  # texts at most


_TOKENS = {"all": "All other tokens have vectors, too.", "used": "All other tokens have none."}


@dataclass(frozen=True, slots=True)
class Share:
    """A share of rows. `low` and `high` are the bounds of Wilson's 95 % interval."""

    count: int
    of: int
    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.1%} ({self.low:.1%} to {self.high:.1%}, {self.count} of {self.of})"


def share_with_interval(outcomes: Sequence[bool] | NDArray[np.bool_]) -> Share:
    count, of = int(np.sum(outcomes)), len(outcomes)
    rate = count / of if of else 0.0
    low, high = wilson_interval(rate, of)
    return Share(count, of, round(rate, 4), round(low, 4), round(high, 4))


def threshold(confidence: NDArray[np.float32], agrees: NDArray[np.bool_], target: float) -> float:
    """Return the lowest confidence above which at least the share `target` of the answers agrees.

    The result is 0 if all answers together reach the target, and just below 1 if no set of answers does.
    """
    if not len(agrees) or agrees.mean() >= target:
        return 0.0
    order = np.argsort(-confidence, kind="stable")
    shares = np.cumsum(agrees[order]) / np.arange(1, len(order) + 1)
    within = np.flatnonzero(shares >= target)
    if not len(within):
        return math.nextafter(1.0, 0.0)
    last = int(within[-1])  # the threshold lies below this answer, so that it is included
    following = float(confidence[order[last + 1]]) if last + 1 < len(order) else 0.0
    return min((float(confidence[order[last]]) + following) / 2, math.nextafter(float(confidence[order[last]]), 0.0))


def latency_ms(classifier: Classifier, texts: Sequence[str]) -> float:
    """Return the median CPU time per text, one text at a time, on one thread.

    CPU time does not depend on the load of the machine, unlike wall-clock time.
    """
    took = []
    for text in texts[:TIMED_REQUESTS]:
        started = time.thread_time()
        classifier.classify_text(text)
        took.append(1e3 * (time.thread_time() - started))
    return round(statistics.median(took), 3) if took else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures on those held-out rows on which no threshold was chosen."""

    over: int  # rows
    agreement: Share  # with the teacher, all rows
    accuracy: Share  # against the labels of the file, all rows
    answered: Share  # rows of which the student is sure
    agreement_answered: Share
    accuracy_answered: Share
    teacher_accuracy: Share


def compare(
    confidence: NDArray[np.float32],
    predictions: NDArray[np.int64],
    teacher_labels: NDArray[np.int64],
    labels: NDArray[np.int64],
    accept_above: float,
) -> Comparison:
    """Compare a student with its teacher and the labels of the file.

    The three arrays have the numbers of the labels: by the student, by the teacher, and in the file.
    """
    sure = confidence > accept_above
    return Comparison(
        over=len(labels),
        agreement=share_with_interval(predictions == teacher_labels),
        accuracy=share_with_interval(predictions == labels),
        answered=share_with_interval(sure),
        agreement_answered=share_with_interval((predictions == teacher_labels)[sure]),
        accuracy_answered=share_with_interval((predictions == labels)[sure]),
        teacher_accuracy=share_with_interval(teacher_labels == labels),
    )


def as_markdown(report: dict[str, Any], figures: Comparison, policy: str) -> str:
    models = report["models"]
    rows = "\n".join(
        f"| {name} | {each['bytes'] / 1e6:.1f} MB | {each['fp32_bytes'] / 1e6:.1f} MB | {each['p50_ms']:.2f} ms |"
        for name, each in models.items()
    )
    return f"""# {report["name"]}, version {report["version"]}

The student was trained on {report["rows"]} rows with {report["labels"]} labels.
{report["held_out"]} rows were held out. The threshold was chosen on {report["held_out"] - figures.over} of them.
The figures below use the other {figures.over}.
{report["taught_by"]}

| | share, 95 % interval |
|---|---|
| agrees with the teacher | {figures.agreement} |
| matches the labels of the file | {figures.accuracy} |
| is sure (confidence above {report["accept_above"]:.3f}) | {figures.answered} |
| agrees where it is sure | {figures.agreement_answered} |
| matches the labels where it is sure | {figures.accuracy_answered} |
| the teacher matches the labels | {figures.teacher_accuracy} |

| model | {report["precision"]} | as fp32 | CPU time of one text, p50 |
|---|---|---|---|
{rows}

The student has {report["hidden"]} hidden units. The rows have {report["used_tokens"]} different tokens.
{_TOKENS[report["tokens"]]}
{_gate_text(report["gate"])}
```yaml
{policy.rstrip()}
```
"""


def _gate_text(gate: dict[str, Any] | None) -> str:
    if gate is None:
        return ""
    verdict = "It is not worse" if gate["passed"] else "**It is worse**"
    return f"""
{verdict} than version {gate["version"]}, which matches {gate["before"]} of the {gate["rows"]} held-out labels, with
95 % confidence. This one matches {gate["after"]}: {gate["why"]}.
"""


def as_json(report: dict[str, Any], figures: Comparison) -> dict[str, Any]:
    return report | asdict(figures)
