"""Text beyond what the embedding model reads is never ignored: it is matched by meaning, or has to be equal."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Decisive
from gateway.long_questions import MAX_FOCUS, MAX_READ, MAX_WHOLE, asking_part, split_question
from gateway.outcomes import Bypass
from gateway.text_forms import fold_forms, fold_spaces
from tests.fixtures.gateways import BOTH_CACHES, TIERS, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, question_of

SENTENCES = [
    "The warehouse in Tromso keeps spare parts for ferries and small cranes.",
    "Every delivery is weighed twice, once at the gate and once at the scales of the hall.",
    "Drivers sign the list of their load before they leave the yard.",
    "A report of the week names the boxes that were damaged on their way.",
    "The night shift cleans the lifts and checks the lamps of the stairs.",
    "Guests register at the desk and wear a yellow badge inside the building.",
    "Oil and paint are stored in a separate room with two doors.",
    "The manager reads all complaints herself and answers within a week.",
    "Parts older than ten years are sold to collectors or melted down.",
    "Heavy snow closes the road to the north for some days each winter.",
    "The canteen serves soup at noon and fish on Fridays.",
    "New workers spend their first month with an experienced colleague.",
]
WORDS = [200, 320, 500, 800, 1200, 1800, 2400, 3100]  # some 250 to 4,000 tokens
# Two ends each that ask for other things: by a number, a word, a negation, a whole sentence.
ENDS = {
    "number": [
        ("How many boxes fit on 3 trucks?", "How many boxes fit on 4 trucks?"),
        ("What did rule 12 of the yard say?", "What did rule 13 of the yard say?"),
        ("Who signed the list on May 4?", "Who signed the list on May 14?"),
        ("Is a load of 900 kg allowed?", "Is a load of 9000 kg allowed?"),
        ("What happens after 5 complaints?", "What happens after 50 complaints?"),
        ("Which parts are in box A-1001-X?", "Which parts are in box A-1001-Y?"),
        ("Who handled request a1f9?", "Who handled request b77d?"),
        ("What was decided in round 1?", "What was decided in round 0?"),
    ],
    "word": [
        ("Who cleans the lifts?", "Who repairs the lifts?"),
        ("When does the canteen open?", "When does the canteen close?"),
        ("What do drivers sign?", "What do guests sign?"),
        ("Where is the oil stored?", "Where is the fish stored?"),
        ("Why is the road to the north closed?", "Why is the road to the south closed?"),
        ("How are old parts sold?", "How are new parts sold?"),
        ("Which badge do guests wear?", "Which badge do drivers wear?"),
        ("Does the manager read complaints?", "Does the manager write complaints?"),
    ],
    "negation": [
        ("Which workers must sign the list?", "Which workers must not sign the list?"),
        ("Are guests allowed in the hall?", "Are guests not allowed in the hall?"),
        ("Why is the paint stored there?", "Why isn't the paint stored there?"),
        ("Can boxes be opened with a badge?", "Can boxes be opened without a badge?"),
        ("Which loads are weighed?", "Which loads are never weighed?"),
        ("Should drivers leave before noon?", "Shouldn't drivers leave before noon?"),
        ("Who has to wait at the desk?", "Who does not have to wait at the desk?"),
        ("Is anything said about lamps?", "Is nothing said about lamps?"),
    ],
    "sentence": [
        ("The yard is closed on Sundays.", "The yard is open every day."),
        ("Summarise this in French.", "Summarise this in German."),
        ("How many doors does the room have?", "Who reads the complaints?"),
        ("List three risks that the text names.", "Write a poem about the winter in the north."),
        ("Translate the last sentence.", "Repeat the last sentence."),
        ("What is sold to collectors?", "What do they serve at noon?"),
        ("Answer in one word: is it safe?", "Answer in one word: is it cheap?"),
        ("Everything else is secret.", "Nothing else is secret. Tell me the names."),
    ],
}
MIDDLES = [
    ("The code of the door is 4711.", "The code of the door is 4712."),
    ("The boss is called Anna.", "The boss is called Ben."),
    ("Visitors must wear a helmet.", "Visitors must not wear a helmet."),
    ("The hall is heated.", "The hall is cold."),
]
REWORDED = [
    ("How do I reset my password?", "How can I reset my password?"),
    ("What does the canteen serve on Fridays?", "What is served in the canteen on Fridays?"),
    ("Where is the oil stored?", "Where do they store the oil?"),
    ("Who reads the complaints?", "By whom are the complaints read?"),
    ("How long is the road to the north closed?", "For how long is the road to the north closed?"),
    ("What colour is the badge of guests?", "Which colour does the badge of guests have?"),
    ("What happens to parts older than ten years?", "What is done with parts older than ten years?"),
    ("Which days does the canteen serve fish?", "On which days does the canteen serve fish?"),
    ("How can I turn on dark mode in the app?", "How do I turn on dark mode in the app?"),
    ("What is the capital of France?", "What's the capital of France?"),
]
TEMPLATE = "You are the clerk of the hall. {head} Customer: {name}. {head} Question: {question} Answer:"
Pair = tuple[str, str]


def head(words: int, seed: int) -> str:
    """Return a text of so many words, with the sentences in another order for each seed."""
    order = random.Random(seed)
    text = " ".join(islice(cycle(order.sample(SENTENCES, len(SENTENCES))), words // 8))
    return " ".join(text.split()[:words]).rstrip(".,") + "."


def pairs_that_differ() -> Iterator[Pair]:
    """Yield 200 pairs of prompts."""
    sizes = cycle(WORDS)
    for seed in range(5):
        for kind, ends in ENDS.items():
            for at, (one, two) in enumerate(ends):
                text, gap = head(next(sizes), seed), "\n\n" if (seed + at) % 2 else " "
                if seed == 4 and kind != "sentence":  # the differing part stands at the beginning
                    yield f"{one}{gap}{text}", f"{two}{gap}{text}"
                else:
                    yield f"{text}{gap}{one}", f"{text}{gap}{two}"
    for seed, (one, two) in enumerate(MIDDLES):
        for words in WORDS[:5]:
            text = head(words, seed)
            yield f"{text} {one} {text} Who signs?", f"{text} {two} {text} Who signs?"
        for words in WORDS[1:6]:
            name, other = one.split()[-1], two.split()[-1]
            yield tuple(
                TEMPLATE.format(head=head(words, seed), name=f"{each} no {at}", question="What is due?")
                for at, each in enumerate((name, other))
            )  # type: ignore[misc]


def pairs_that_ask_the_same() -> Iterator[Pair]:
    """Yield 40 pairs of prompts."""
    for at, words in enumerate(islice(cycle(WORDS), 10)):
        text = head(words, 20 + at)
        yield text, "  " + text.replace(" ", "   ", 5 + at) + " \n"
    for at, words in enumerate(islice(cycle(WORDS), 10)):
        text = head(words, 40 + at).replace(". ", ".\n")
        yield text, text.replace("\n", "\r\n") + "\r\n"
    for at, (one, two) in enumerate(REWORDED):
        text = head(WORDS[at % len(WORDS)], 60 + at)
        yield f"{text}\n\n{one}", f"{text}\n\n{two}"
        yield (
            TEMPLATE.format(head=text, name="Ann", question=one),
            TEMPLATE.format(head=text, name="Ann", question=two),
        )


def own_answer(prompt: str) -> str:
    """Return an answer that is unlike that of any other prompt, as the route learns from answers that are alike."""
    digest = sha256(prompt.encode()).hexdigest()
    return " ".join(SENTENCES[int(digest[at], 16) % len(SENTENCES)] for at in range(3)) + f" It is {digest}."


async def answer_each(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(completion(call, own_answer(question_of(call))))


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    async with gateway_of(config_of(tmp_path, backends, embedder={"adapter": "onnx"}), BOTH_CACHES) as gateway:
        yield gateway


async def test_two_hundred_long_prompts_never_get_the_answer_of_another(served: Served, upstream: Upstream) -> None:
    """All prompts with the same head meet in one cache, not only the two of a pair."""
    upstream.answer = answer_each
    pairs = list(pairs_that_differ())
    assert len(pairs) == 200
    assert all(len(text) > MAX_WHOLE for pair in pairs for text in pair)
    wrong = [
        text
        for text in dict.fromkeys(text for pair in pairs for text in pair)
        if (await served.chat(text)).text != own_answer(text)
    ]
    assert wrong == []


async def test_a_loose_promise_does_not_mix_up_long_prompts(upstream: Upstream, tmp_path: Path) -> None:
    """They are equal but for the part that asks. Of short questions the policy accepts one wrong hit in twenty."""
    upstream.answer = answer_each
    loose = BOTH_CACHES.replace("max_wrong_hits: 1%", "max_wrong_hits: 5%")
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, embedder={"adapter": "onnx"})
    texts = dict.fromkeys(text for pair in pairs_that_differ() for text in pair)
    async with gateway_of(config, loose) as served:
        wrong = [text for text in texts if (await served.chat(text)).text != own_answer(text)]
    assert wrong == []


async def test_long_prompts_that_differ_in_spaces_or_in_the_wording_of_the_question_are_served(served: Served) -> None:
    pairs = list(pairs_that_ask_the_same())
    assert len(pairs) == 40
    right = 0
    for stored, asked in pairs:
        assert (await served.chat(stored)).text == f"upstream answers: {stored}"
        answer = await served.chat(asked)
        assert answer.text in (f"upstream answers: {stored}", f"upstream answers: {asked}")
        right += answer.text == f"upstream answers: {stored}"
    assert right >= 32


async def test_the_same_question_after_two_long_system_prompts_is_not_matched(served: Served) -> None:
    for end in ("Be brief.", "Be polite."):
        system = {"role": "system", "content": head(2400, 1) + " " + end}
        user = {"role": "user", "content": "How do I reset my password?"}
        answer = await served.post("/v1/chat/completions", {"model": "m", "messages": [system, user]})
        assert answer.cache_status == "nearhit; fwd=miss; stored"


async def test_the_complexity_of_a_long_question_is_that_of_the_whole(upstream: Upstream, tmp_path: Path) -> None:
    backends = {name: {"adapter": "openai", "url": upstream.url} for name in ("light", "large")}
    text = head(800, 3) + "\n\nQuestion: How do I reset my password?"
    policy = TIERS.replace("max_wrong_hits: 1%", "min_similarity: 0.8")
    async with gateway_of(config_of(tmp_path, backends, embedder={"adapter": "onnx"}), policy) as gateway:
        parts = gateway.gateway.parts
        expected = parts.space.complexity.judge(text, None, None).score
        answer = await gateway.chat(text)
        assert float(answer.headers["x-nearhit-complexity"]) == round(expected, 2)
        other = await gateway.chat(text.replace("How do I", "How can I"))
        assert other.cache_status == "nearhit; hit; detail=semantic"


async def test_a_short_question_is_not_matched_with_a_long_one_that_begins_like_it(served: Served) -> None:
    text = head(200, 1)[: MAX_WHOLE - 40].rsplit(".", 1)[0] + ". Who signs?"
    for prompt in (text, f"{text} {'Or who else? ' * 12}", f"{text} {head(800, 2)} Who signs?"):
        assert (await served.chat(prompt)).text == f"upstream answers: {prompt}"


LONG = head(320, 7)


@pytest.mark.parametrize(
    ("text", "focus"),
    [
        (f"{LONG} Who signs the list?", "Who signs the list?"),
        (f"{LONG}\n\nSay who signs the list", "Say who signs the list"),
        (f"{LONG} Question: Who signs? Answer:", "Who signs?"),
        (f"{LONG}\nFrage: Wer unterschreibt die Liste?", "Wer unterschreibt die Liste?"),
        (f"Who signs, according to this text?\n{LONG}", "Who signs, according to this text?"),
        (f"Who signs the list? {LONG}", "Who signs the list?"),
    ],
)
def test_the_part_that_asks_is_found(text: str, focus: str) -> None:
    split = split_question(text)
    assert split.focus == focus
    assert split_question(text.replace("canteen", "kitchen")).rest != split.rest


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        f"Translate to French: {LONG} Who signs the list?",
        f"{LONG} Translate this: Who signs the list?",
        f"Fix the errors in this text: {LONG} Who signs the list?",
        f"{LONG} ```python\nprint(1)\n# why?",
        f"{LONG} {'and ' * 200} who?",
    ],
)
def test_a_text_whose_words_all_matter_has_no_part_that_asks(text: str) -> None:
    assert asking_part(fold_spaces(text)) is None
    split = split_question(text)
    assert split.focus is not None and len(split.focus) <= MAX_FOCUS
    assert split_question(text + " x").rest != split.rest != split_question("x " + text).rest


def test_a_question_at_the_beginning_never_equals_one_at_the_end() -> None:
    assert split_question(f"Who signs? {LONG}").rest != split_question(f"{LONG} Who signs?").rest


def test_a_short_question_is_whole() -> None:
    found = Decisive(b"all", b"{}", "Who signs?")
    assert (found.focus, found.context) == ("Who signs?", b"{}")


@pytest.mark.parametrize("text", ["a" * (MAX_READ + 1), " " * (MAX_WHOLE + 1)])
def test_a_question_that_is_not_read_is_not_looked_up(text: str) -> None:
    found = Decisive(b"all", b"{}", text)
    assert (found.focus, found.no_question) == (None, Bypass.TOO_LONG)


@given(st.text(st.sampled_from("aQ: \n?.`\ud800\u6211"), min_size=MAX_WHOLE + 1, max_size=MAX_WHOLE + 60))
def test_any_long_text_is_split(text: str) -> None:
    split = split_question(text)
    assert split.focus is None or 0 < len(split.focus) <= MAX_FOCUS
    assert split == split_question(text + " \n")


@pytest.mark.parametrize("unit", ["question: ", "a. ", "? ", "\n", "` ", "answer:\n", "a", "please ", ".) "])
def test_splitting_a_hostile_text_takes_no_longer_than_its_length(unit: str) -> None:
    """Regular expressions that backtrack would hold all other requests up; the suite's own time limit catches it."""
    split_question(unit * (MAX_READ // len(unit)))


def test_other_forms_of_letters_and_digits_are_written_plainly() -> None:
    wide = "\uff28\uff4f\uff57 \uff4d\uff41\uff4e\uff59 o\ufb03ces in \uff12\uff10\uff12\uff11\uff1f"
    assert Decisive(b"", b"", wide).focus == "How many offices in 2021?"
    assert fold_forms("x\u00b2 caf\u00e9 \u4f60\u597d") == "x\u00b2 caf\u00e9 \u4f60\u597d"
