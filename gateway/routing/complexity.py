"""How hard a request is, in [0, 1]: what decides between the light and the large model. Pure.

A logistic function of features of the text, and of where its embedding lies between easy and hard prompts. The
weights are set by hand, for prompts as they come to assistants; docs/decisions/0004-complexity.md has the reasons.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from gateway.messages import Vector

_CODE = re.compile(
    r"```|\bdef \w+\(|\bclass \w+[:({]|\bSELECT\b.+\bFROM\b|=>|\{\s*\n|;\s*\n|</\w+>|\b(?:function|regex|stack trace|"
    r"refactor|compile|segfault|exception|algorithm|unit test|SQL|API|kubernetes|dockerfile)\b",
    re.IGNORECASE,
)
_MATHS = re.compile(
    r"[=<>\u2264\u2265\u222b\u2211\u221a]\s*\d|\d\s*[-+*/^=]\s*\d|\\frac|\\int|\\sum|\b(?:prove|proof|integral|derivative|equation|"
    r"theorem|probability|matrix|eigenvalue|polynomial|solve for|how many ways|calculate|compute)\b",
    re.IGNORECASE,
)
_REASONING = re.compile(
    r"\b(?:why|explain|compare|contrast|analy[sz]e|evaluate|derive|design|trade-?offs?|step by step|reason|justify|"
    r"critique|implications?|pros and cons|difference between|diagnose|plan|strategy|optimi[sz]e|warum|erkl\u00e4r\w*|"
    r"por qu\u00e9|explica)\b",
    re.IGNORECASE,
)
_STEPS = re.compile(
    r"\b(?:then|after that|finally|next|first|second|third|also|in addition)\b|^\s*(?:\d+[.)]|[-*])\s",
    re.IGNORECASE | re.MULTILINE,
)
_CONSTRAINTS = re.compile(
    r"\b(?:must|should|at least|at most|exactly|no more than|without|only|unless|format|json|table|markdown|"
    r"\d+ (?:words|sentences|paragraphs|bullet))\b",
    re.IGNORECASE,
)
_FACTUAL = re.compile(
    r"^\W*(?:what|who|when|where|which|is|are|was|were|does|do|did|can|how (?:many|much|old|far|long|tall)|define|wer|"
    r"wann|wo|was|qui\u00e9n|cu\u00e1ndo|d\u00f3nde)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Features:
    """Counts are squashed to [0, 1): n / (n + k), so that no single one runs away."""

    length: float
    code: float
    maths: float
    reasoning: float
    steps: float
    constraints: float
    factual: float
    output: float  # how much the client expects to be written
    hardness: float  # in [-1, 1]: nearer to hard than to easy examples; 0 without an embedding


# Weight of each feature in the logit. With all at zero the logit is the bias: a plain sentence scores 0.18.
BIAS = -1.5
WEIGHTS = Features(
    length=2.2, code=1.6, maths=1.4, reasoning=1.5, steps=1.0, constraints=1.2, factual=-0.9, output=0.4, hardness=5.0
)


def features_of(prompt: str, max_tokens: int | None, hardness: float = 0.0) -> Features:
    def squashed(pattern: re.Pattern[str], half: float) -> float:
        found = len(pattern.findall(text))
        return found / (found + half)

    # Beyond 8 kB more text changes no feature much; the bound keeps the worst case in the microseconds.
    text = prompt[:8192]
    words = prompt.count(" ") + 1
    return Features(
        length=words / (words + 120),
        code=squashed(_CODE, 1.0),
        maths=squashed(_MATHS, 1.0),
        reasoning=squashed(_REASONING, 1.0),
        steps=squashed(_STEPS, 2.0),
        constraints=squashed(_CONSTRAINTS, 2.0),
        factual=1.0 if _FACTUAL.match(text) and words <= 20 else 0.0,
        output=0.0 if max_tokens is None else max_tokens / (max_tokens + 1000),
        hardness=hardness,
    )


def complexity(features: Features) -> float:
    """In (0, 1)."""
    logit = BIAS + sum(getattr(WEIGHTS, name) * getattr(features, name) for name in Features.__dataclass_fields__)
    return 1.0 / (1.0 + math.exp(-logit))


# Prompts of our own that span what assistants are asked: the axis between their mean embeddings is "hardness".
EASY = (
    "What is the capital of Portugal?",
    "What time do you open on Saturdays?",
    "Translate 'good morning' into French.",
    "How do I reset my password?",
    "Who wrote Pride and Prejudice?",
    "Say hello to my colleague Anna.",
    "What colour is the sky?",
    "Give me a synonym for happy.",
    "Where can I find my invoice?",
    "Is the library open today?",
)
HARD = (
    "Prove that the square root of two is irrational and generalise the argument to other primes.",
    "Design a distributed rate limiter and discuss its failure modes under network partitions.",
    "Explain step by step why this recursive function overflows the stack and rewrite it iteratively.",
    "Compare the monetary policies of two central banks and analyse their effects on inflation.",
    "Write a Python program that parses a log file, aggregates errors by hour and plots them.",
    "A train leaves at noon at 80 km/h; when does a second one at 120 km/h catch up with it?",
    "Derive the gradient of the cross-entropy loss with respect to the logits.",
    "Evaluate the legal and ethical arguments for and against the patenting of genes.",
    "Plan a migration of a monolith to microservices with no downtime, including the data.",
    "Diagnose why the patient with these symptoms and lab values has anaemia.",
)


def hardness_axis(easy: list[Vector], hard: list[Vector]) -> Vector:
    """The unit vector, shape (d,), from the mean of `easy` to the mean of `hard`."""
    axis = np.mean(hard, axis=0) - np.mean(easy, axis=0)
    unit: Vector = np.asarray(axis / max(float(np.linalg.norm(axis)), 1e-12), dtype=np.float32)
    return unit
