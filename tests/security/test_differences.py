"""Differences that are never a matter of chance, through the gateway with the real models: none of them is served.

Beside them, harmless ways of writing are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.cache.test_exact_parts import DIFFERENT
from tests.fixtures.gateways import Served, config_of, gateway_of, recovered
from tests.fixtures.upstream import Upstream, completion, question_of, serving

PROMISES = ("1%", "2%", "5%")
POLICY = "version: 1\nroutes:\n" + "".join(
    f"""
  - name: at-{promise[0]}
    match: {{model: "at-{promise[0]}-*"}}
    cache: {{exact: {{ttl: 1h}}, semantic: {{ttl: 1h, max_wrong_hits: {promise}, learn: off}}}}
    route: {{backend: main}}
"""
    for promise in PROMISES
)
POLICY += "  - {name: default, match: {}, route: {backend: main}}\n"
CONCURRENCY = 8

# The texts of a contract, with the sentence that differs at the beginning, in the middle and at the end.
CLAUSE = "The tenant pays the rent on the first day of the month and keeps the rooms clean. "
RULE = "The landlord {} enter the rooms without a notice of one day. "
ASKS = "Is this clause valid?"


def _contract(verb: str, before: int, after: int) -> str:
    return CLAUSE * before + RULE.format(verb) + CLAUSE * after + ASKS


LONG = [
    (_contract("must", before, length - before), _contract("must not", before, length - before))
    for length in (2, 8, 24)
    for before in (0, length // 2, length)
]
PLAIN = "How do I reset my password?"
UNSEEN = [
    (PLAIN, f"{PLAIN[:9]}{hidden}{PLAIN[9:]}")
    for hidden in (
        "\u200b", "\u00ad", "\u202e", "\u2066", "\ufeff", "\u061c", "\U000e0000", "\U000e0041", "\U000e0101", "\ufe0f",
        "\u0336", "\u0301", "\u20dd", "\x00", "\x08", "\x1b", "\x1f", "\x7f", "\x9b", "\u2062", "\ufff9",
    )
]  # fmt: skip
COUNTERS = [
    ("Round 1", "Round 0"),
    ("entry 0 of catalogue 0", "entry 1 of catalogue 0"),
    ("entry 0 of catalogue 0", "entry 0 of catalogue 1"),
    ("Describe entry 7 of catalogue 3", "Describe entry 3 of catalogue 7"),
    ("This is message number 12", "This is message number 13"),
    ("Where is A-1001-X?", "Where is A-1001-Y?"),
    ("Give me the report of unit A-1001-X", "Give me the report of unit A-1001-Y"),
    (r"What does \d+ match?", r"What does \D+ match?"),
    (r"Explain the pattern ^\s*$", r"Explain the pattern ^\S*$"),
    ("if a == b: print(a)", "if a = b: print(a)"),
]
PAIRS = [*((a, b) for _, a, b in DIFFERENT), *COUNTERS, *LONG, *UNSEEN]

ASKED = (
    "How do I reset my password?",
    "What's the capital of Australia?",
    "How can I cancel my subscription?",
    "Where can I see the status of my order?",
    "What does 'idempotent' mean?",
    "How long does it take to boil an egg?",
    "What's the best way to learn the piano?",
    "How do I change the language of the app?",
    "Why isn't my printer connected?",
    "Who wrote 'The Tempest'?",
)
WAYS: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.lower,
    lambda text: text.replace(" '", " \u2018").replace("'", "\u2019"),
    lambda text: "".join(chr(ord(letter) + 0xFEE0) if letter.isalpha() else letter for letter in text),  # NFKC
    lambda text: f"  {text.replace(' ', '  ')}\n",
)
HARMLESS = [(asked, way(asked)) for asked in ASKED for way in WAYS if way(asked) != asked][:40]
LEAST_SERVED = 36


async def _served(served: Served, promise: str, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of which the second question got the stored answer to the first. Each has a scope of its own."""
    limiter = asyncio.Semaphore(CONCURRENCY)

    async def ask(number: int, a: str, b: str) -> bool:
        model = f"at-{promise[0]}-{number}-{pairs is PAIRS}"
        async with limiter:
            first = await served.chat(a, model=model)
            assert (first.status, "fwd=miss" in first.headers["Cache-Status"]) == (200, True), first.body
            second = await served.chat(b, model=model)
            assert second.status == 200, second.body
            return "; hit" in second.headers["Cache-Status"]

    found = await asyncio.gather(*(ask(number, a, b) for number, (a, b) in enumerate(pairs)))
    return [pair for pair, hit in zip(pairs, found, strict=True) if hit]


@pytest.mark.slow
async def test_no_difference_in_code_identifiers_counters_or_unseen_characters_is_served(tmp_path: Path) -> None:
    assert (len(set(PAIRS)) >= 75, len(set(HARMLESS))) == (True, 40)

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, f"An answer to {question_of(call)!r}"))

    async with serving(Upstream()) as upstream:
        upstream.answer = answer
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, embedder={"adapter": "onnx"})
        async with gateway_of(config, POLICY) as served:
            await recovered(served)
            wrong = {promise: await _served(served, promise, PAIRS) for promise in PROMISES}
            right = {promise: await _served(served, promise, HARMLESS) for promise in PROMISES}
    assert {promise: pairs for promise, pairs in wrong.items() if pairs} == {}
    refused = {promise: set(HARMLESS) - set(pairs) for promise, pairs in right.items()}
    assert min(map(len, right.values())) >= LEAST_SERVED, refused
