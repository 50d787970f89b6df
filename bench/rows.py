"""The rows of `make bench`: what is asked of which gateway, and the marks that it is held to."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.asked import POLICY, body, other_case, unheard
from bench.protocols import EVENTS, QUESTION

CHAT = "/v1/chat/completions"
FIXED, PROXY = "bare server, fixed body", "bare reverse proxy"
BURST, RELAYED = f"bare server, burst of {EVENTS} events", "bare reverse proxy, live stream"
EXACT_HIT, TWO_WORKERS = "exact hit", "exact hit, two workers"
# Neighbours are looked at and refused.
REFUSING = POLICY.replace(
    "  - name: default",
    """  - name: missing
    match: {model: "missing-*"}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9999}}
    route: {backend: main}
  - name: default""",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A gateway that rows ask. `stored`: what it is asked once before, so that it has the answers. A store that stands
    still with the whole machine is waited for: given up, it would end the run."""

    embedder: str
    stored: tuple[bytes, ...]
    more: str = "store: {timeout: 5s}\n"  # lines of its configuration
    policy: str = POLICY
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """A figure that is held, and one that is to be reached; None: there is none. `field`: of `bench.report`'s."""

    field: str
    hold: float
    reach: float | None = None

    def met(self, figure: float) -> str:
        sign = -1 if self.field == "per_second" else 1  # more of it is better, of all others less
        if self.reach is not None and sign * figure <= sign * self.reach:
            return "reached"
        return "held" if sign * figure <= sign * self.hold else "MISSED"


def marks(field: str, hold: tuple[float, float], reach: tuple[float, float]) -> Marks:
    return Mark(field, hold[0], reach[0]), Mark(field, hold[1], reach[1])


Marks = tuple[Mark | None, Mark | None]  # at 1 and at 32 connections
Draw = Callable[[random.Random, int], list[bytes]]


@dataclass(frozen=True, slots=True)
class Row:
    """`on`: the gateway, or the bare server, that is asked. `asked`: the bodies of so many requests. `part`: of the
    requests of a round this share, for what is dear. `expect`: what the head of each answer contains. `events`: of a
    stream; `live`: they come one by one, `EVENT_S` apart."""

    name: str
    on: str
    asked: Draw
    expect: str = ""
    part: float = 1.0
    path: str = CHAT
    events: int = 0
    live: bool = False
    marks: Marks = (None, None)

    @property
    def of_gateway(self) -> bool:
        return self.on in KINDS

    def count(self, requests: int, connections: int) -> int:
        return max(8, 2 * connections) if self.live else max(connections, int(requests * self.part))


def same(model: str = "bench", **fields: object) -> Draw:
    return lambda _, count: [body(QUESTION, model, **fields)] * count


def new_bytes(draw: random.Random, count: int) -> list[bytes]:
    """Requests for a stored stream that were not seen before."""
    return [body(QUESTION, "long", stream=True, metadata={"n": draw.getrandbits(60)}) for _ in range(count)]


def fresh(kind: str = "fresh", **fields: object) -> Draw:
    """Never asked, in a scope of their own: what is stored meanwhile makes nothing else slower."""

    def asked(draw: random.Random, count: int) -> list[bytes]:
        model = f"{kind}-{draw.getrandbits(32):x}"
        return [body(unheard(draw), model, **fields) for _ in range(count)]

    return asked


def paraphrases(draw: random.Random, count: int) -> list[bytes]:
    return [body(other_case(draw)) for _ in range(count)]


def sentence(draw: random.Random, scope: int) -> bytes:
    """As long as `QUESTION`, in words that the model knows, each its own; its neighbours are refused."""
    return body(f"How do I {QUESTION[9:60]} number {draw.getrandbits(30)} never arrives?", f"missing-{scope}")


def sentences(draw: random.Random, count: int) -> list[bytes]:
    scope = draw.getrandbits(32)
    return [sentence(draw, scope) for _ in range(count)]


def in_turn(_: random.Random, count: int) -> list[bytes]:
    """Stored requests, no two alike within 32 of each other: none waits for another's read."""
    return [STORED[i % len(STORED)] for i in range(count)]


STORED = tuple(body(unheard(random.Random(number))) for number in range(64))
KINDS: Mapping[str, Kind] = {
    "hash": Kind("hash", (body(QUESTION), body(QUESTION, "long"))),
    # A front in which no entry has room.
    "store": Kind("hash", STORED, "store: {front_size: 1B, timeout: 5s}\n"),
    "workers": Kind("hash", (body(QUESTION),), workers=2),
    "onnx": Kind("onnx", (body(QUESTION),), policy=REFUSING),
}
ROWS = (
    Row(FIXED, "fixed", same()),
    Row(PROXY, "proxy", same()),
    Row(EXACT_HIT, "hash", same(), "detail=exact", marks=marks("x_fixed", (0.75, 0.65), (0.5, 0.35))),
    Row(TWO_WORKERS, "workers", same(), "detail=exact", marks=(None, Mark("x_one_worker", 2 / 1.8))),
    Row(
        "exact hit, from the store", "store", in_turn, "detail=exact",
        marks=marks("x_fixed", (1.5, 0.85), (1.0, 0.4)),
    ),
    Row(BURST, "fixed", same("long", stream=True), events=EVENTS),
    Row(
        f"stream hit, {EVENTS} events", "hash", same("long", stream=True), "detail=exact", events=EVENTS,
        marks=marks("x_fixed", (1.4, 1.0), (1.1, 0.7)),
    ),
    Row("stream hit, request not seen before", "hash", new_bytes, "detail=exact", part=0.25, events=EVENTS),
    Row(RELAYED, "proxy", same("uncached", stream=True), events=EVENTS, live=True),
    Row(
        "live stream relayed", "hash", same("uncached", stream=True), "detail=policy", events=EVENTS, live=True,
        marks=(None, Mark("event_us", 20, 12)),
    ),
    Row("live stream, stored in both caches", "hash", fresh(stream=True), "fwd=miss", events=EVENTS, live=True),
    Row(
        "pass-through miss", "hash", same("uncached"), "detail=policy",
        marks=marks("x_fixed", (2.0, 1.2), (1.2, 0.6)),
    ),
    Row("unknown path, untouched", "hash", same(), "detail=pass-through", path="/v1/unknown"),
    Row("miss, stored in the exact cache", "hash", fresh("exactly"), "stored", part=0.25),
    Row(
        "miss, stored in both caches (hash)", "hash", fresh(), "stored", part=0.25,
        marks=marks("x_fixed", (3.0, 2.2), (2.0, 1.5)),
    ),
    Row(
        "semantic hit (hash)", "hash", paraphrases, "detail=semantic", part=0.5,
        marks=marks("x_fixed", (2.0, 1.5), (1.2, 0.9)),
    ),
    Row(
        "semantic hit (all-MiniLM)", "onnx", paraphrases, "detail=semantic", part=0.2,
        marks=(Mark("p50_ms", 3.0), Mark("per_second", 600)),
    ),
    Row(
        "miss, stored in both caches (all-MiniLM)", "onnx", sentences, "stored", part=0.125,
        marks=(Mark("p50_ms", 3.5), None),
    ),
)  # fmt: skip
