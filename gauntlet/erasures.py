"""An erasure must find the texts of a user wherever they went: entries, jobs, batches, logs, labels, files on disk."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from gauntlet.part import Finding, Part, verdict_of
from tests.fixtures.erasures import Users

STEPS = (
    "restart", "migrate", "replicate", "export", "import_last", "purge", "label", "submit_batch", "erase",
    "ask", "submit",
)  # fmt: skip
LENGTH = 10  # steps before the last erasure


async def sequence(users: Users, draw: random.Random) -> tuple[int, list[str]]:
    """Run steps in random order, and an erasure at the end. Return the number of erasures, and the places where a text
    was left after one of them."""
    erasures, left = 1, list[str]()
    await users.ask("alice")
    for step in draw.choices(STEPS, k=LENGTH):
        if step == "erase":
            erasures, left = erasures + 1, left + await users.erase()
        elif step in ("ask", "submit"):
            await getattr(users, step)(draw.choice(("alice", "bob")))
        else:
            await getattr(users, step)()
    return erasures, left + await users.erase()


async def run(quick: bool) -> Finding:
    """Run sequences on embedded stores and on stores that two gateways share."""
    sequences, erasures, left = (4 if quick else 40), 0, list[str]()
    for seed in range(sequences):
        with tempfile.TemporaryDirectory() as folder:
            users = Users(Path(folder), shared=seed % 2 == 1)
            await users.open()
            try:
                count, places = await sequence(users, random.Random(seed))
            finally:
                await users.close()
            erasures, left = erasures + count, left + places
    figure = f"{erasures} erasures in {sequences} sequences of {LENGTH} steps, {len(left)} places with a text left"
    return verdict_of(figure, {f"a text is left, first in {''.join(left[:1])}": not left})


PART = Part("erasures", "no text of an erased user is left, whatever happened to it before", run)
