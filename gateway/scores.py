"""Scores of complexity, the tier that they prefer, and the facts of a request for the traffic log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from gateway.prices import Tokens

PromptRow = np.ndarray[tuple[int], np.dtype[np.float16]]


class Scorer(StrEnum):
    """The origin of a complexity."""

    TEXT = "text"  # the gateway's own score, of the text
    CLASSIFIER = "classifier"  # the route's own classifier
    SESSION = "session"  # the last question of the session
    STATED = "stated"  # the expectation of a policy test


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt as the complexity model reads it. A route may learn to score the same row better."""

    score: float  # the shipped complexity, in [0, 1]
    row: PromptRow  # (k,): scaled features of the text, then the embedding; empty if only the score is known
    by: Scorer = Scorer.TEXT


class TierLabel(StrEnum):
    """The light model's answer beside the large one's. A mere difference says little, as either may be right."""

    WORSE = "worse"
    EQUAL = "as-good"
    BETTER = "better"
    DIFFERENT = "different"

    @property
    def gain(self) -> float | None:
        """The gain of the large model's answer in [-1, 1], or None if nobody judged it."""
        return _GAINS.get(self)

    @property
    def worse(self) -> float:
        """The probability that the light answer is worse. One half for a difference that nobody judged."""
        return _WORSE.get(self, 0.0)


_GAINS = {TierLabel.WORSE: 1.0, TierLabel.EQUAL: 0.0, TierLabel.BETTER: -1.0}
_WORSE = {TierLabel.WORSE: 1.0, TierLabel.DIFFERENT: 0.5}


@dataclass(frozen=True, slots=True)
class TierDecision:
    """The tier that the rule prefers, before budgets and failures are considered."""

    large: bool
    threshold: float  # the large model is preferred above this score, in [0, 1]
    carried: float | None = None  # carry for the next request of equal score, in [0, 1); None leaves it


class RequestFacts(NamedTuple):
    """Facts about a request before any decision. Digests are keyed, 16 bytes; durations are seconds."""

    path: str
    model: str
    dialect: str
    operation: str
    headers: tuple[tuple[str, str], ...]  # the headers that the policy in force matches on
    tenant: bytes
    user: bytes  # of the body's user, or b""
    canonical: bytes  # of everything that decides the answer
    context: bytes  # of everything but the question
    question: bytes | None  # None without a semantic lookup
    no_store: bool
    no_cache: bool
    only_if_cached: bool
    max_age_s: float | None
    min_fresh_s: float
    uncached: str | None  # why its answer is neither stored nor looked up
    inputs: bool  # it has several inputs, which are answered separately
    stream: bool
    input_tokens: int  # estimated from its text
    max_tokens: int | None
    temperature: float | None
    roles: tuple[str, ...]
    budget_s: float | None  # the budget that the client states
    patient: bool  # a job, which has no budget


@dataclass(frozen=True, slots=True)
class TrafficFacts:
    """Facts about a recorded request before any decision."""

    plain: bool  # its route uses a plain similarity threshold: the verifier is not used
    request: RequestFacts
    question: str | None  # kept in memory only
    keeps_prompt: bool


class ComparedAnswer(NamedTuple):
    """An answer that was compared with that of another backend: its backend, and its tokens if they are known."""

    backend: str
    tokens: Tokens = Tokens()
