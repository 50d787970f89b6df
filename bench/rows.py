"""The rows of `make bench`: the request and the gateway of each, and the marks to meet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.fixtures import CONFIG, POLICY, body, new_question, other_case, other_spacing
from bench.protocols import EVENTS, QUESTION
from gateway.config.policy import single_backend

CHAT = "/v1/chat/completions"
FIXED, PROXY = "bare server, fixed body", "bare reverse proxy"
BURST, RELAYED = f"bare server, burst of {EVENTS} events", "bare reverse proxy, live stream"
EXACT_HIT, TWO_WORKERS = "exact hit", "exact hit, two workers"
PLAIN, PROMISED = "min_similarity: 0.9", "max_wrong_hits: 1%"
# What `nearhit serve --upstream` runs with, and a route that does not cache.
SHIPPED = single_backend.POLICY.decode().replace(
    "routes:\n", "routes:\n  - {name: through, match: {model: uncached}, route: {backend: main}}\n"
)
# All that a request may have on that is no other answer: browsers, compression and traces (to an endpoint that takes
# whatever comes).
ALL_ON = (
    CONFIG.replace("{admin}}}", "{admin}, compress: true, cors: {{origins: [https://app.example]}}}}")
    + "telemetry: {{traces: {{endpoint: 'http://127.0.0.1:{upstream}', sample: 1%, slow: off}}}}\n"
)
FROM_A_PAGE = "Origin: https://app.example\r\nAccept-Encoding: gzip\r\n"
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
    config: str = CONFIG
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """A figure that is to hold, and one to reach; None: there is none. `field`: the one of `bench.report`."""

    field: str
    hold: float
    reach: float | None = None

    def verdict(self, figure: float) -> str:
        sign = -1 if self.field == "per_second" else 1  # more of it is better, of all others less
        if self.reach is not None and sign * figure <= sign * self.reach:
            return "reached"
        return "held" if sign * figure <= sign * self.hold else "MISSED"


def x_fixed(one: float | None, many: float, reach: float | None = None) -> Marks:
    return [] if one is None else [Mark("x_fixed", one)], [Mark("x_fixed", many, reach)]


Marks = tuple[Sequence[Mark], Sequence[Mark]]  # at 1 and at 32 connections
Draw = Callable[[random.Random, int], list[bytes]]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    `on`: the gateway, or the bare server, that answers. `asked`: makes the bodies of that many requests. `headers`:
    lines of each request. `part`: the share of a round's requests, for rows that are slow. `expect`: text in the head
    of each answer. `events`: those of a stream. `live`: they come one by one, `EVENT_S` apart. `beside`: the row with
    the same requests and less switched on.
    """

    name: str
    on: str
    asked: Draw
    expect: str = ""
    part: float = 1.0
    path: str = CHAT
    events: int = 0
    live: bool = False
    marks: Marks = ((), ())
    beside: str = ""
    headers: str = ""

    @property
    def of_gateway(self) -> bool:
        return self.on in KINDS

    def count(self, requests: int, connections: int) -> int:
        return max(8, 2 * connections) if self.live else max(connections, int(requests * self.part))


def same(model: str = "bench", **fields: object) -> Draw:
    return lambda _, count: [body(QUESTION, model, **fields)] * count


def new_bytes(model: str = "bench", **fields: object) -> Draw:
    """Return requests for a stored answer in bytes that were not seen before."""

    def bodies(draw: random.Random, count: int) -> list[bytes]:
        return [body(QUESTION, model, metadata={"n": draw.getrandbits(60)}, **fields) for _ in range(count)]

    return bodies


def fresh(kind: str = "fresh", **fields: object) -> Draw:
    """Return new requests in a scope of their own, so that the entries they store make nothing else slower."""

    def bodies(draw: random.Random, count: int) -> list[bytes]:
        model = f"{kind}-{draw.getrandbits(32):x}"
        return [body(new_question(draw), model, **fields) for _ in range(count)]

    return bodies


def paraphrases(draw: random.Random, count: int) -> list[bytes]:
    return [body(other_case(draw)) for _ in range(count)]


def same_words(draw: random.Random, count: int) -> list[bytes]:
    return [body(other_spacing(draw)) for _ in range(count)]


def unique(draw: random.Random) -> str:
    """Return a question as long as `QUESTION`, in words that the model knows, which was never asked."""
    return f"How do I {QUESTION[9:60]} number {draw.getrandbits(30)} never arrives?"


def sentence(draw: random.Random, scope: int, **fields: object) -> bytes:
    """Return a request with a unique question; its neighbours are refused."""
    return body(unique(draw), f"missing-{scope}", **fields)


def sentences(draw: random.Random, count: int) -> list[bytes]:
    scope = draw.getrandbits(32)
    return [sentence(draw, scope) for _ in range(count)]


def lone_sentences(draw: random.Random, count: int) -> list[bytes]:
    """Return requests that each have a scope of their own.

    The endpoint answers all questions alike, so a promise would learn to serve one answer for all.
    """
    return [sentence(draw, draw.getrandbits(32)) for _ in range(count)]


def stored_in_turn(_: random.Random, count: int) -> list[bytes]:
    """Return stored requests, no two alike within 32 of each other: none waits for another's read."""
    return [STORED[i % len(STORED)] for i in range(count)]


STORED = tuple(body(new_question(random.Random(number))) for number in range(64))
KINDS: Mapping[str, Kind] = {
    "hash": Kind("hash", (body(QUESTION), body(QUESTION, "long"))),
    # A front in which no entry has room.
    "store": Kind("hash", STORED, "store: {front_size: 1B, timeout: 5s}\n"),
    "workers": Kind("hash", (body(QUESTION),), workers=2),
    "promised": Kind("hash", (body(QUESTION),), policy=POLICY.replace(PLAIN, PROMISED)),
    "all on": Kind(
        "hash",
        (body(QUESTION), body(QUESTION, "long")),
        policy=POLICY.replace(PLAIN, f"{PROMISED}, audit: 2%"),
        config=ALL_ON,
    ),
    "all on, store": Kind(
        "hash",
        STORED,
        "store: {front_size: 1B, timeout: 5s}\n",
        POLICY.replace(PLAIN, f"{PROMISED}, audit: 2%"),
        ALL_ON,
    ),
    "onnx": Kind("onnx", (body(QUESTION),), policy=REFUSING),
    "shipped": Kind("onnx", (body(QUESTION), body(QUESTION, "long")), policy=SHIPPED),
}
NEW_BYTES, STREAM_HIT = "exact hit, bytes not seen before", f"stream hit, {EVENTS} events"
FROM_STORE, THROUGH = "exact hit, from the store", "pass-through miss"
SEMANTIC_HIT, BOTH = "semantic hit (hash)", "miss, stored in both caches (hash)"
LIVE, LIVE_STORED = "live stream relayed", "live stream, stored in both caches"
PROMISED_HIT, PROMISED_BOTH = f"{SEMANTIC_HIT}, {PROMISED}", f"{BOTH}, {PROMISED}"
AT_MOST = Mark("x_less", 1.25)
_PLAIN = (
    Row(EXACT_HIT, "hash", same(), "detail=exact", marks=x_fixed(0.56, 0.5)),
    Row(NEW_BYTES, "hash", new_bytes(), "detail=exact", part=0.5, marks=x_fixed(None, 1.5, 1.0)),
    Row(FROM_STORE, "store", stored_in_turn, "detail=exact", marks=x_fixed(1.18, 1.2, 0.8)),
    Row(
        STREAM_HIT, "hash", same("long", stream=True), "detail=exact", events=EVENTS,
        marks=x_fixed(0.51, 0.6),
    ),
    Row(
        "stream hit, request not seen before", "hash", new_bytes("long", stream=True), "detail=exact", part=0.25,
        events=EVENTS,
    ),
    Row(LIVE, "hash", same("uncached", stream=True), "detail=policy", events=EVENTS, live=True),
    Row(LIVE_STORED, "hash", fresh(stream=True), "fwd=miss", events=EVENTS, live=True),
    Row(
        THROUGH, "hash", same("uncached"), "detail=policy",
        marks=([Mark("x_fixed", 1.55)], [Mark("x_fixed", 2.0, 1.4), Mark("x_proxy", 0.45, 0.33)]),
    ),
    Row("unknown path, untouched", "hash", same(), "detail=pass-through", path="/v1/unknown"),
    Row("miss, stored in the exact cache", "hash", fresh("exactly"), "stored", part=0.25),
    Row(BOTH, "hash", fresh(), "stored", part=0.25),
    Row(SEMANTIC_HIT, "hash", paraphrases, "detail=semantic", part=0.5, marks=x_fixed(1.86, 2.8, 1.8)),
    Row(PROMISED_HIT, "promised", same_words, "detail=semantic", part=0.5),
    Row(PROMISED_BOTH, "promised", fresh(), "stored", part=0.25),
)  # fmt: skip
# In rows of the semantic cache the verifier's own time is in both.
_WITH_LESS = {SEMANTIC_HIT: PROMISED_HIT, BOTH: PROMISED_BOTH}


def _all_on() -> Iterator[Row]:
    for row in _PLAIN:
        if row.on != "promised":
            on = "all on, store" if row.on == "store" else "all on"
            less = _WITH_LESS.get(row.name, row.name)
            marked = ((AT_MOST,), (AT_MOST,))
            asked, expect = row.asked, row.expect
            if row.asked is paraphrases:
                asked, expect = same_words, "nearhit; hit"  # an audit stores its question, which may be drawn again
            all_on = replace(row, asked=asked, expect=expect, name=f"{row.name}, all on", on=on, beside=less)
            yield replace(all_on, headers=FROM_A_PAGE, marks=marked)


ROWS = (
    Row(FIXED, "fixed", same()),
    Row(PROXY, "proxy", same()),
    Row(BURST, "fixed", same("long", stream=True), events=EVENTS),
    Row(RELAYED, "proxy", same("uncached", stream=True), events=EVENTS, live=True),
    *_PLAIN,
    Row(TWO_WORKERS, "workers", same(), "detail=exact", marks=((), [Mark("x_one_worker", 2 / 1.8)])),
    *_all_on(),
    Row("shipped policy: exact hit", "shipped", same(), "detail=exact", marks=x_fixed(0.56, 0.5)),
    Row("shipped policy: bytes not seen before", "shipped", new_bytes(), "detail=exact", part=0.5),
    Row(f"shipped policy: {STREAM_HIT}", "shipped", same("long", stream=True), "detail=exact", events=EVENTS),
    Row("shipped policy: pass-through", "shipped", same("uncached"), "detail=policy"),
    Row("shipped policy: semantic hit (all-MiniLM)", "shipped", same_words, "detail=semantic", part=0.2),
    Row("shipped policy: miss, stored (all-MiniLM)", "shipped", lone_sentences, "stored", part=0.125),
    Row("semantic hit (all-MiniLM)", "onnx", paraphrases, "detail=semantic", part=0.2),
    Row("miss, stored in both caches (all-MiniLM)", "onnx", sentences, "stored", part=0.125),
)  # fmt: skip
