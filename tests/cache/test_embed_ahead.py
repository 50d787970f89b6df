"""`EmbedAhead`: when a question is embedded before its vector is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from gateway.messages import Entry, Request, Response, Verdict, Whole
from gateway.messages.provenance import MISSED
from gateway.stages.ahead import RARE, EmbedAhead
from tests.fixtures.entries import entry_of


@dataclass
class Recorded:
    """An embedder and a store at once: what was begun, and what lies in process."""

    begun: list[str] = field(default_factory=list)
    kept: dict[str, Entry] = field(default_factory=dict)

    def begin(self, text: str) -> None:
        self.begun.append(text)

    def peek(self, fingerprint: str) -> Entry | None:
        return self.kept.get(fingerprint)


@dataclass(frozen=True)
class Asked:
    """What the stage reads of a request."""

    question: str | None
    fingerprint: str

    @property
    def call(self) -> Asked:
        return self


class Traffic:
    def __init__(self) -> None:
        self.recorded = Recorded()
        parts = cast(Any, self.recorded)
        self.stage = EmbedAhead(parts, parts)
        self.count = 0

    async def ask(self, verdict: Verdict, *, question: str | None = "why?", kept: bool = False) -> bool:
        """Whether it was begun."""
        self.count += 1
        fingerprint, before = f"{self.count}", len(self.recorded.begun)
        if kept:
            self.recorded.kept[fingerprint] = entry_of()

        async def forward(_: Request) -> Response:
            return Response(200, (), Whole(b""), replace(MISSED, verdict=verdict))

        await self.stage(cast(Request, Asked(question, fingerprint)), forward)
        return len(self.recorded.begun) > before


@pytest.fixture
async def quiet() -> Traffic:
    """A store that has not had the answer for long."""
    traffic = Traffic()
    for _ in range(100):
        await traffic.ask(Verdict.MISS)
    return traffic


async def test_nothing_is_begun_before_the_store_has_been_seen_to_answer_little() -> None:
    traffic = Traffic()
    assert not any([await traffic.ask(Verdict.MISS) for _ in range(60)])
    assert any([await traffic.ask(Verdict.SEMANTIC) for _ in range(40)])


async def test_what_lies_in_process_is_not_embedded_and_says_nothing_of_the_store(quiet: Traffic) -> None:
    assert not any([await quiet.ask(Verdict.EXACT, kept=True) for _ in range(1000)])
    assert await quiet.ask(Verdict.MISS)


@pytest.mark.parametrize("verdict", [Verdict.EXACT, Verdict.STALE])
async def test_where_the_store_answers_more_often_nothing_is_begun(quiet: Traffic, verdict: Verdict) -> None:
    """Of ten in a row the first few are begun for nothing."""
    begun = [await quiet.ask(verdict) for _ in range(10)]
    assert begun[0] and not begun[-1]


async def test_at_a_share_above_the_limit_hardly_any_vector_is_made_for_nothing(quiet: Traffic) -> None:
    found = [at % 4 == 0 for at in range(400)]  # a quarter, and RARE is less
    assert RARE < 0.25
    begun = [await quiet.ask(Verdict.EXACT if each else Verdict.MISS) for each in found]
    assert sum(begun[100:]) <= 15


async def test_a_request_without_a_question_goes_by(quiet: Traffic) -> None:
    assert not await quiet.ask(Verdict.MISS, question=None)
