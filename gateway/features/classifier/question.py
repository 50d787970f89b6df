"""The question to a classifier, its answer, and the port of its adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ClassifierFailed(Exception):
    """A classifier of the operator's own gave no answer. The message tells why and contains no request text."""


class ClassifierAnswerInvalid(ClassifierFailed):
    """A classifier's answer is neither a score in [0, 1] nor the name of a tier."""


@dataclass(frozen=True, slots=True)
class ClassifierQuestion:
    """All that a classifier of the operator's own learns of a request."""

    text: str
    route: str
    model: str  # as the client named it
    operation: str
    max_tokens: int | None  # the client's limit


@dataclass(frozen=True, slots=True)
class ClassifierAnswer:
    """Either a complexity in [0, 1], or the name of a tier or of its backend."""

    score: float | None = None
    tier: str | None = None


class TextClassifier(Protocol):
    """`TextClassifier` scores texts in another process."""

    async def ask(self, question: ClassifierQuestion) -> ClassifierAnswer:
        """Return the answer. The caller bounds the time. Raise `ClassifierFailed`."""

    async def close(self) -> None: ...
