"""The decision about two texts never fails, whatever they are made of."""

from __future__ import annotations

import asyncio
import random
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from gateway.adapters.embedding.embedders import InlineEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.cache.answer_similarity import compare_words
from gateway.cache.feedback import Counterexamples
from gateway.cache.judgement import CandidateScorer
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import RouteControl
from gateway.cache.verifiers import LearnedVerifier, load_weights
from gateway.features.privacy.personal_data import find
from gateway.long_questions import split_question
from gateway.ports import Acceptance, StoredCandidate
from gateway.text_forms import fold_forms
from tests.fixtures.entries import entry_of

PAIRS, LONG = 5_000, 20_000  # in each run; with `--hypothesis-profile=long`
CODE = (
    "def f(x): return x", "git push --force", "rm -rf /tmp/a", "SELECT * FROM t WHERE a='b'", "a->b::c<d>", "x += 1;",
    "if (a && b) {", "}", "```", "$HOME", "%APPDATA%", "#!/bin/sh", "\\d+(?:a|b)*", "[a-z]{2,}", "λx.x", "0x1F", "1e-9",
)  # fmt: skip
URLS = (
    "https://example.com/a?b=c#d", "x://-", "://", "ftp://", "mailto:a@b.c", "http://[::1]:80/", "//a", "a@b", "@@@",
    "^@^", "@a@", "www.", "C:\\a\\b", "../..", "~/.ssh", "urn:isbn:1", "http://a..b/", "https://%20", "@", "::", "a://b@c",
)  # fmt: skip
MATHEMATICS = (
    "∫x²dx", "√2", "≤", "∑", "a^b", "x_1", "½", "10⁻³", "π≈3.14", "-5", "+5", "--5", "1,000.5", "1.000,5", "%", "5%",
    "3/4", "٣", "四", "Ⅳ", "∞", "NaN", ".5", "5.", "1.2.3.4", "12:30", "$5", "5€", "#1", "n°5",
)  # fmt: skip
EMOJI = ("🙂", "👩‍👩‍👧", "🇩🇪", "🇳🇴🇸🇪", "👍🏽", "❤️", "\u200d", "\ufe0f", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣")
WORDS = (
    "what", "does", "mean", "not", "never", "is", "translate", "summarise", "this:", "from", "to", "Oslo", "in", "the",
    "capital", "of", "order", "A-1234", "three", "books", "before", "after", "answer", "only", "yes", "or", "no",
)  # fmt: skip
SEPARATORS = (" ", "  ", "\n", "\t", "", ", ", ": ", " - ", "\u00a0", "\u2028", "\r\n", '"', "'", "“", "«", "(", ")")


@cache
def characters() -> tuple[tuple[str, ...], ...]:
    """Return the characters of each general category of Unicode, without surrogates."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for point in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(point))
        if category not in ("Cs", "Co", "Cn"):
            found[category].append(chr(point))
    return tuple(tuple(of) for of in found.values())


def piece(rng: random.Random) -> str:
    kinds: tuple[Callable[[], str], ...] = (
        lambda: rng.choice(WORDS),
        lambda: rng.choice(WORDS),
        lambda: rng.choice(CODE),
        lambda: rng.choice(URLS),
        lambda: "".join(rng.choice("@^:/.#-_*=<>()[]{}`~|+&%$!?") for _ in range(rng.randint(1, 5))),
        lambda: rng.choice(MATHEMATICS),
        lambda: rng.choice(EMOJI),
        lambda: "".join(rng.choice(rng.choice(characters())) for _ in range(rng.randint(1, 6))),
        lambda: rng.choice(rng.choice(characters())) * rng.choice((1, 2, 3, 40)),
        lambda: str(rng.getrandbits(rng.choice((3, 16, 80)))),
    )
    return rng.choice(kinds)()


def text(rng: random.Random) -> str:
    if rng.random() < 0.01:
        return rng.choice(("", " ", "\x00", "\ufeff", "a" * 5_000, "@" * 300, "1" * 2_000, "x " * 800, "\n" * 50))
    return "".join(piece(rng) + rng.choice(SEPARATORS) for _ in range(rng.randint(1, 7)))


def changed(rng: random.Random, first: str) -> str:
    """Return a text near the first one, as a neighbour in the index is."""
    at = rng.randint(0, len(first))
    kinds: tuple[Callable[[], str], ...] = (
        lambda: first[:at] + piece(rng) + first[at:],
        lambda: first[:at] + first[at + 1 :],
        lambda: first.swapcase(),
        lambda: first[::-1],
        lambda: unicodedata.normalize(rng.choice(("NFC", "NFD", "NFKC")), first),
        lambda: f"{rng.choice(WORDS)} {first} {rng.choice(URLS)}",
    )
    return rng.choice(kinds)()


def pairs(seed: int, count: int) -> Iterator[tuple[str, str]]:
    rng = random.Random(seed)
    for _ in range(count):
        first = text(rng)
        yield first, text(rng) if rng.random() < 0.3 else changed(rng, first)


@pytest.mark.slow  # starts nothing, takes seconds
def test_no_pair_of_strange_texts_makes_the_decision_fail(pytestconfig: pytest.Config) -> None:
    count = LONG if pytestconfig.getoption("--hypothesis-profile") == "long" else PAIRS
    control = RouteControl([(0.5, 0.002)] * BANDS, "basis")
    embedder = InlineEmbedder(HashEncoder())
    verifier = LearnedVerifier(load_weights())
    scorer = CandidateScorer(verifier, embedder, Acceptance(max_wrong_hits=0.01), Counterexamples())
    third = "how long does the parcel to Bergen take?"

    async def decide(asked: str, stored: str) -> None:
        split_question(fold_forms(asked))
        find(asked, ("email", "phone", "card", "iban", "ssn"))
        compare_words(asked, stored)
        embedding = await embedder.embed(asked, "")
        near = [(entry_of(question=stored), 0.97), (entry_of(question=third), 0.8)]
        scores = scorer.of(asked, "", embedding, near, control, 0)
        await scorer.apply_second_opinion(scores)

    async def decide_all() -> Counter[str]:
        failures: Counter[str] = Counter()
        for asked, stored in pairs(17, count):
            try:
                await decide(asked, stored)
            except Exception as error:
                failures[f"{type(error).__name__} of {asked[:60]!r} and {stored[:60]!r}"] += 1
        return failures

    assert not asyncio.run(decide_all())


@pytest.mark.parametrize("signs", ["@@@", "^@^", "x://-", "http://@"])
def test_signs_without_letters_are_compared_as_written(signs: str) -> None:
    verifier = LearnedVerifier(load_weights())
    stored = StoredCandidate(f"what does {signs} mean here?", 0.99)
    for asked, same in ((f"what does {signs} mean here", True), ("what does @=@=@ mean here?", False)):
        (opinion,) = verifier.opinions(asked, [stored])
        assert (opinion.veto is None and opinion.doubt is None) is same
