"""The promise of `max_wrong_hits` holds by question where answers are short, alike or unreliable.

A route for each kind of endpoint gets the same stream: hand-written wordings behind one instruction, each once. A hit
is wrong if the answer was made for a question that asks something else, whatever the answer says.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import target
from tests.fixtures.processes import Process
from tests.fixtures.upstream import Upstream, completion, serving

WORDINGS = Path(__file__).parents[1] / "training" / "wordings"
INSTRUCTION = "Does this message report a problem with something that the sender has bought? Answer briefly.\n\n"
PROMISE, QUICK, FULL, SEED, EXTRA_S = 0.01, 120, 800, 18, 300.0
OUTAGE, SORRY = "The service is not available right now, please try again in a few minutes.", "I'm sorry, I can't help."
LEAST, SPARE = 0.7, 20  # hits of answers in other words to those in the same, and hits that may lack by chance
WORDS = ("alder", "birch", "cedar", "damson", "elder", "fir", "gorse", "hazel", "ivy", "juniper", "larch", "maple")


@dataclass(frozen=True, slots=True)
class Asked:
    """A wording. `matter`: the number of what it asks; `at`: its place in the stream, in [0, 1)."""

    text: str
    matter: int
    at: float


def _drawn(asked: Asked) -> random.Random:
    """Return draws that are the same for each wording of a matter."""
    return random.Random(asked.matter)


def _label(share: float) -> Callable[[Asked], str]:
    return lambda asked: "yes" if _drawn(asked).random() < share else "no"


def _own(asked: Asked) -> str:
    draw = _drawn(asked)
    return "It is about " + ", ".join(draw.choice(WORDS) + str(draw.randrange(1000)) for _ in range(6)) + "."


def _worded(asked: Asked) -> str:
    """Return an answer of its own in words that change each time."""
    draw, words = random.Random(asked.text), _own(asked).removeprefix("It is about ").removesuffix(".")
    return draw.choice(("{}", "This is about {}.", "I would say that it is about {}, as far as I can see.")).format(
        words
    )


def _apologies(asked: Asked) -> str:
    return SORRY if random.Random(asked.text).random() < 0.2 else _own(asked)


KINDS: Mapping[str, Callable[[Asked], str]] = {
    "fixed": lambda _: "Thank you for your message.",
    "99-1": _label(0.01),
    "90-10": _label(0.1),
    "50-50": _label(0.5),
    "77-classes": lambda asked: f"class_{asked.matter % 77}",
    "apologies": _apologies,
    "outage": lambda asked: OUTAGE if 0.4 < asked.at < 0.6 else _own(asked),
    "own": _own,
    "worded": _worded,
}
RARE = {"99-1", "90-10"}


def policy() -> str:
    routes = "".join(
        f"""
  - name: {kind}
    match: {{model: {kind}}}
    cache: {{semantic: {{ttl: 1h, max_wrong_hits: {100 * PROMISE:g}%, audit: 2%}}}}
    route: {{backend: main}}"""
        for kind in KINDS
    )
    return f"version: 1\nroutes:{routes}\n  - {{name: default, match: {{}}, route: {{backend: main}}}}\n"


def stream(count: int) -> list[Asked]:
    """Return so many wordings of matters that are asked some four times each."""
    lines = [line for path in sorted(WORDINGS.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    draw = random.Random(SEED)
    draw.shuffle(lines)
    pairs: list[tuple[str, int]] = []
    for matter, line in enumerate(lines):
        if len(pairs) >= count:
            break
        pairs += [(text, matter) for text in json.loads(line)["same"]]
    del pairs[count:]
    draw.shuffle(pairs)
    return [Asked(INSTRUCTION + text, matter, at / len(pairs)) for at, (text, matter) in enumerate(pairs)]


@dataclass(slots=True)
class Tally:
    """The counts of one route."""

    hits: int = 0
    wrong: int = 0
    rare: int = 0
    missed: int = 0  # rare labels that were told as the other one


async def replay(it: Process, kind: str, asked: list[Asked]) -> Tally:
    """Ask one question after the other. The id of an answer names the matter that it was made for."""
    tally = Tally()
    for each in asked:
        answer = await it.chat(each.text, model=kind)
        made_for = int(answer.json["system_fingerprint"])
        if answer.cache_status.startswith("nearhit; hit"):
            tally.hits += 1
            tally.wrong += made_for != each.matter
        if kind in RARE and KINDS[kind](each) == "yes":
            tally.rare += 1
            tally.missed += answer.text != "yes"
    return tally


async def run(quick: bool) -> Finding:
    """Ask one kind of endpoint after the other: a gateway under load leaves lookups out."""
    asked = stream(QUICK if quick else FULL)
    known = {each.text: each for each in asked}

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        each = known[call["messages"][-1]["content"]]
        return web.json_response(
            {**completion(call, KINDS[call["model"]](each)), "system_fingerprint": str(each.matter)}
        )

    upstream = Upstream()
    upstream.answer = answer
    async with serving(upstream), target(upstream.url, policy(), embedder={"adapter": "onnx"}) as it:
        await it.recovered()
        tallies = {kind: await replay(it, kind, asked) for kind in KINDS}
    requests, wrong = len(asked) * len(KINDS), sum(tally.wrong for tally in tallies.values())
    figure = f"{len(asked)} requests each, hits / wrong: " + ", ".join(
        f"{kind} {tally.hits} / {tally.wrong}" for kind, tally in tallies.items()
    )
    rare, missed = (sum(getattr(tally, name) for tally in tallies.values()) for name in ("rare", "missed"))
    return verdict_of(
        f"{figure}; {rare - missed} of {rare} rare labels",
        {
            f"{wrong} of {requests} requests are wrong by question": wrong <= PROMISE * requests,
            **{
                f"{kind}: {tally.wrong} of {len(asked)} are wrong by question": tally.wrong <= 2 * PROMISE * len(asked)
                for kind, tally in tallies.items()
            },
            f"{missed} of {rare} rare labels are told as the other": missed <= max(1.0, 0.02 * rare),
            "answers of their own give no hits": tallies["own"].hits > 0,
            "answers in other words each time starve the route": tallies["worded"].hits
            >= LEAST * tallies["own"].hits - SPARE,
        },
    )


PART = Part(
    "short answers",
    "wrong by question: 1 % of all and 2 % of a kind; rare labels: 98 % are told; other words: 70 % of the hits",
    run,
    extra_s=EXTRA_S,
)
