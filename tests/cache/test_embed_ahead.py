"""`EmbeddingPrefetch`: when a question is embedded before its vector is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.context import RequestContext
from gateway.steps.exact_cache import EmbeddingPrefetch


class Traffic:
    """Requests for which the store is asked, and the questions that were begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.prefetch = EmbeddingPrefetch(cast(Any, self))

    def begin(self, text: str, owner: str) -> None:
        self.begun.append(text)

    def ask(self, *, found: bool = False, question: str | None = "why?") -> bool:
        """Whether it was begun."""
        before = len(self.begun)
        request = SimpleNamespace(call=SimpleNamespace(focus=question), owner="acme")
        self.prefetch.begin(cast(RequestContext, request))
        self.prefetch.observe(found=found)
        return len(self.begun) > before


@pytest.fixture
def quiet() -> Traffic:
    """A store that has not had the answer for long."""
    traffic = Traffic()
    for _ in range(100):
        traffic.ask()
    return traffic


def test_nothing_is_begun_before_the_store_has_been_seen_to_answer_little() -> None:
    traffic = Traffic()
    first, then = [traffic.ask() for _ in range(60)], [traffic.ask() for _ in range(40)]
    assert not any(first) and any(then)


def test_where_the_store_answers_more_often_nothing_is_begun(quiet: Traffic) -> None:
    """Of ten in a row the first few are begun for nothing."""
    begun = [quiet.ask(found=True) for _ in range(10)]
    assert begun[0] and not begun[-1]


def test_at_a_share_above_the_limit_hardly_any_vector_is_made_for_nothing(quiet: Traffic) -> None:
    found = [at % 4 == 0 for at in range(400)]  # a quarter, and RARE is less
    assert EmbeddingPrefetch.RARE < 0.25
    begun = [quiet.ask(found=each) for each in found]
    assert sum(begun[100:]) <= 15


def test_a_request_without_a_question_goes_by(quiet: Traffic) -> None:
    assert not quiet.ask(question=None)
