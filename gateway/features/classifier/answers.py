"""Read the answer of a classifier. Pure."""

from __future__ import annotations

import math

import orjson

from gateway.features.classifier.question import ClassifierAnswer, ClassifierAnswerInvalid

MAX_TIER_CHARS = 200
EXPECTED = 'expected {"score": 0.73} or {"tier": "large"}'


def read_json(body: bytes) -> ClassifierAnswer:
    """Return the answer of a JSON object with `score` or `tier`; other keys do not count.

    Raise `ClassifierAnswerInvalid`.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ClassifierAnswerInvalid(f"it sent no JSON, {EXPECTED}") from None
    if not isinstance(value, dict) or ("score" in value) == ("tier" in value):
        raise ClassifierAnswerInvalid(f"it sent another object, {EXPECTED}")
    return of_tier(value["tier"]) if "tier" in value else of_score(value["score"])


def of_score(value: object) -> ClassifierAnswer:
    """Return the answer of a score. Raise `ClassifierAnswerInvalid` unless it is a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ClassifierAnswerInvalid("its score is no number, expected a number in [0, 1]")
    if not 0 <= value <= 1:
        raise ClassifierAnswerInvalid(f"its score is {value:g}, expected a number in [0, 1]")
    return ClassifierAnswer(score=float(value))


def of_tier(value: object) -> ClassifierAnswer:
    """Return the answer of a tier's name; the route knows whether it has the tier. Raise `ClassifierAnswerInvalid`."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TIER_CHARS:
        raise ClassifierAnswerInvalid("its tier is no name, expected the name of a tier or of its backend")
    return ClassifierAnswer(tier=value)
