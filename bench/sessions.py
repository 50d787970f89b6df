"""Replays generated conversations through the decision code, with and without sessions: `python -m bench.sessions`.

A session has 20 requests: questions, loops of tool calls, and short replies. Its questions are the hand-written ones of
`tests/routing/easy_and_hard.jsonl`, which says whether each is hard. A tool result and a short reply are as hard as the
question before them. The scores are those of the shipped complexity model, without embeddings.

Prices are those of gpt-4o-mini and gpt-4o of 2024-10. The part of a prompt that a backend has answered in the last five
minutes counts as cached there, at half the price.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from multidict import CIMultiDict

from gateway.admin.policy_tests import IdleBackend
from gateway.config.policy.model import Route, Target, Tier
from gateway.context import RequestContext
from gateway.dialects.openai.dialect import CHAT, OpenAI
from gateway.features.sessions.rule import SessionRule
from gateway.features.sessions.sessions import RouteSessions, SessionMetrics, SessionTable
from gateway.messages import FullBody, Response
from gateway.observability.telemetry import Telemetry
from gateway.prices import Price
from gateway.request_fields import Client
from gateway.routing.backend_choice import BackendChoice
from gateway.routing.complexity import ComplexityModel, build_complexity
from gateway.routing.fallback import BackendAnswer
from gateway.routing.latency_promises import Promises
from gateway.routing.tier_learning import TierLearning
from gateway.steps.parse_and_route import apply_route
from gateway.streams import BufferedBody

QUESTIONS = Path(__file__).parents[1] / "tests" / "routing" / "easy_and_hard.jsonl"

# The conversations. No log of real ones may be published, so these shares are assumptions.
TURNS = 20  # requests of a session
HARD, TOOLS, REPLY, IDLE = 0.3, 0.6, 0.4, 0.05  # shares: hard questions, loops after one, replies, breaks before one
LONGEST_LOOP = 5  # tool results
PAUSE_S, BREAK_S = 20.0, 900.0
REPLIES = ("yes", "go on", "yes, please do that", "ok", "no, the other one", "continue")
ANSWER = "The next step follows from what the tool has shown, so here is what I would do about it now. " * 8
RESULT = '{"status": "ok", "rows": [{"id": 17, "name": "alpha", "total": 3.5}], "took_ms": 12}\n' * 12

THRESHOLD = 0.5  # `escalate_above`
LOWER = 0.4  # a second one for sessions, which spends a part of the saving on quality

PRICES = {"light": Price(0.15, 0.6), "large": Price(2.5, 10.0)}  # US dollars per million tokens
CACHED, WARM_S = 0.5, 300.0  # the price of cached input, and how long it is cached
SYSTEM_TOKENS, ANSWER_TOKENS, CHARACTERS_PER_TOKEN = 1500, 200, 4


@dataclass(frozen=True)
class Request:
    """One request of a session. `pause_s`: the seconds since the one before."""

    messages: Sequence[dict[str, Any]]
    hard: bool
    tool_result: bool
    pause_s: float


def generate(rng: random.Random, questions: Sequence[tuple[Sequence[str], Sequence[str]]]) -> Iterator[Request]:
    """Return the requests of one session. `questions`: the easy and the hard ones of each language."""
    easy, hard = rng.choice(questions)
    turns: list[dict[str, Any]] = []
    calls = 0

    def ask(text: str, is_hard: bool, pause_s: float) -> Iterator[Request]:
        nonlocal calls
        turns.append({"role": "user", "content": text})
        yield Request(tuple(turns), is_hard, False, pause_s)
        for _ in range(rng.randint(1, LONGEST_LOOP) if rng.random() < TOOLS else 0):
            calls += 1
            function = {"name": "look_up", "arguments": "{}"}
            called = {"id": f"call_{calls}_{rng.getrandbits(32):x}", "type": "function", "function": function}
            turns.append({"role": "assistant", "content": None, "tool_calls": [called]})
            turns.append({"role": "tool", "tool_call_id": called["id"], "content": RESULT})
            yield Request(tuple(turns), is_hard, True, PAUSE_S)
        turns.append({"role": "assistant", "content": ANSWER})

    def converse() -> Iterator[Request]:
        while True:
            is_hard = rng.random() < HARD
            pause_s = BREAK_S if rng.random() < IDLE else PAUSE_S
            yield from ask(rng.choice(hard if is_hard else easy), is_hard, pause_s)
            if rng.random() < REPLY:
                yield from ask(rng.choice(REPLIES), is_hard, PAUSE_S)

    return islice(converse(), TURNS)


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@dataclass
class Tally:
    """The figures of one replay."""

    requests: int = 0
    switches: int = 0
    in_loops: int = 0  # of them, between a tool call and its result
    hard: int = 0
    hard_to_large: int = 0
    large: int = 0
    dollars: float = 0.0

    def add(self, request: Request, backend: str, before: str | None, dollars: float) -> None:
        self.requests += 1
        switched = before not in (None, backend)
        self.switches += switched
        self.in_loops += switched and request.tool_result
        self.hard += request.hard
        self.hard_to_large += request.hard and backend == "large"
        self.large += backend == "large"
        self.dollars += dollars


@dataclass
class Prefixes:
    """The prompt that each backend has cached of one session: tokens, and when."""

    cached: dict[str, tuple[int, float]] = field(default_factory=dict)

    def dollars(self, request: Request, backend: str, now: float) -> float:
        """Return the cost of a request, and record that the backend has seen its prompt."""
        text = sum(len(turn["content"] or "") for turn in request.messages)
        tokens, price = SYSTEM_TOKENS + text // CHARACTERS_PER_TOKEN, PRICES[backend]
        seen, at = self.cached.get(backend, (0, now))
        warm = seen if now - at <= WARM_S else 0
        self.cached[backend] = tokens + ANSWER_TOKENS, now
        billed = tokens - (1.0 - CACHED) * min(warm, tokens)
        return (billed * price.input_per_million + ANSWER_TOKENS * price.output_per_million) / 1e6


class Replay:
    """`Replay` sends sessions through one policy."""

    def __init__(self, rule: SessionRule | None, threshold: float, complexity: ComplexityModel, sessions: int) -> None:
        target = Target((Tier("light", "light"), Tier("large", "large")), (threshold,))
        self._route = Route("bench", target)
        self._clock, telemetry = Clock(), Telemetry()
        held = (
            None
            if rule is None
            else RouteSessions(self._route, rule, SessionTable(sessions), self._clock, SessionMetrics())
        )
        learning = TierLearning("", self._clock, telemetry)
        pools = {name: IdleBackend("openai") for name in PRICES}
        promises = Promises(self._clock, telemetry)
        self._choice = BackendChoice(
            self._route, pools, promises, learning, self._clock, complexity, conversations=held
        )
        self.tally = Tally()

    def send(self, requests: Sequence[Request]) -> None:
        before, prefixes = None, Prefixes()
        for request in requests:
            self._clock.now += request.pause_s
            backend = self._answer(request)
            self.tally.add(request, backend, before, prefixes.dollars(request, backend, self._clock.now))
            before = backend

    def _answer(self, sent: Request) -> str:
        body = orjson.dumps({"model": "auto", "messages": sent.messages})
        request = RequestContext(
            request_id="",
            method="POST",
            path=CHAT,
            query="",
            headers=CIMultiDict[str](),
            body_source=BufferedBody(),
            clock=self._clock,
            client=Client("bench", "bench"),
        )
        apply_route(request, OpenAI().parse(CHAT, body, {}), self._route)
        decision = self._choice.decide(request)
        answered = BackendAnswer(Response(200, (), FullBody(b"")), decision.backends[0])
        if self._choice.conversations is not None:
            self._choice.conversations.record_answer(request, answered)
        return answered.backend


def read_questions() -> Sequence[tuple[Sequence[str], Sequence[str]]]:
    rows = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    return [(row["easy"], row["hard"]) for row in rows]


def replay(count: int, seed: int, progress: Callable[[str], None] = print) -> dict[str, Tally]:
    """Replay `count` sessions without sessions and with them, and return the figures of both."""
    questions, complexity = read_questions(), build_complexity("none")
    ways = {
        "none": Replay(None, THRESHOLD, complexity, count),
        "hold: tier": Replay(SessionRule(), THRESHOLD, complexity, 2 * count),
        f"hold: tier, {LOWER:g}": Replay(SessionRule(), LOWER, complexity, 2 * count),
    }
    for number in range(count):
        requests = list(generate(random.Random(f"{seed}/{number}"), questions))
        for way in ways.values():
            way.send(requests)
    progress(f"{count:,} sessions of {TURNS} requests, seed {seed}")
    return {name: way.tally for name, way in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found = replay(arguments.sessions, arguments.seed)
    most = found["none"].switches
    heads = ("in loops", "switches", "change", "large", "hard to large", "dollars")
    print(f"{'sessions':<12}" + "".join(f"{head:>15}" for head in heads))
    for name, tally in found.items():
        values = (
            f"{tally.in_loops:,}",
            f"{tally.switches:,}",
            f"{tally.switches / most - 1:+.1%}" if most else "-",
            f"{tally.large / tally.requests:.1%}",
            f"{tally.hard_to_large / tally.hard:.1%}" if tally.hard else "-",
            f"{tally.dollars:.2f}",
        )
        print(f"{name:<16}" + "".join(f"{value:>15}" for value in values))


if __name__ == "__main__":
    main()
