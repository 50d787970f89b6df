"""Whatever happened to the texts of a user before, an erasure leaves none of them in any place."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.fixtures.erasures import Users

STEPS = ("restart", "migrate", "replicate", "export", "import_last", "purge", "label", "submit_batch")


@pytest.mark.parametrize("shared", [False, True])
async def test_the_texts_of_a_user_are_in_many_places_until_the_erasure(tmp_path: Path, shared: bool) -> None:
    """So the search finds them, and what it does not find afterwards was erased."""
    users = Users(tmp_path, shared=shared)
    await users.open()
    try:
        await users.replicate()
        for work in (users.ask("alice"), users.submit("alice"), users.submit_batch(), users.label(), users.ask("bob")):
            await work
        await users.settle()
        places = await users.places()
        for part in (":entry:", "jobs:job:", "files:file:", "traffic/", "labels/", "appendonlydir/"):
            assert any(part in place for place in places), part
        assert await users.erase() == []
        entries = await users.served[0].gateway.removal.entries(99)
        assert entries and all("of bob" in entry["question"] for entry in entries)
    finally:
        await users.close()


class Erasures(RuleBasedStateMachine):
    """One step after another, on an embedded store or on one that a second gateway joins."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._runner = asyncio.Runner()
        self._users: Users | None = None
        self._left: list[str] = []

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    @initialize(shared=st.booleans())
    def begin(self, shared: bool) -> None:
        self._users = Users(Path(self._folder.name), shared=shared)
        self._run(self._users.open())
        self._run(self._users.ask("alice"))

    @rule(user=st.sampled_from(["alice", "alice", "bob"]), how=st.sampled_from(["ask", "ask", "submit"]))
    def store(self, user: str, how: str) -> None:
        self._run(getattr(self._users, how)(user))

    @rule(step=st.sampled_from(STEPS))
    def happen(self, step: str) -> None:
        self._run(getattr(self._users, step)())

    @rule()
    def erase(self) -> None:
        assert self._users is not None
        self._left = self._run(self._users.erase())

    @invariant()
    def nothing_is_left_after_an_erasure(self) -> None:
        assert self._left == []

    def teardown(self) -> None:
        try:
            if self._users is not None and not self._left:
                self.erase()
                assert self._left == []
        finally:
            if self._users is not None:
                self._run(self._users.close())
            self._runner.close()
            self._folder.cleanup()


TestErasures = Erasures.TestCase
TestErasures.settings = settings(max_examples=12, stateful_step_count=10, deadline=None)
