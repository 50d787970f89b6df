"""Prompts that programs make: within a frame, what varies decides."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.templates import SURE_WORDS, VaryingParts, varying_parts
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

WORDINGS = Path(__file__).parents[2] / "training" / "wordings"

TICKET = (
    "You are the triage assistant of a software company. Read the ticket below and answer with one of the labels "
    "billing, outage, how-to or other, and nothing else. Be careful and consistent. Ticket: {} Label:"
)
CUSTOMER = (
    "Answer the customer's message in a friendly tone, at most three sentences, signed by the support team of our "
    "shop, without promising dates and without naming colleagues. Message: {}"
)
EXTRACTION = (
    "From the text below give name, city and amount as JSON with exactly these three keys and no other output; write "
    "null where the text does not say it, and keep the spelling of the text. Text: {}"
)
RAG = (
    "Use only the passage to answer the question; if the passage does not say it, answer that you do not know. Quote "
    "the sentence that you rely on. Passage: {} Question: {} Answer:"
)
SQL = (
    "Given the tables orders(id, customer, total, created) and customers(id, name, city, since) of a Postgres database "
    "write one SQL query without any explanation that answers this: {}"
)
ABC = ["a", "b", "c"]
TRAFFIC = [
    (TICKET, [("The invoice of March was charged twice.",), ("The dashboard shows error 502 since noon.",),
              ("How do I export my projects to CSV?",)]),
    (CUSTOMER, [("My parcel has not arrived yet.",), ("The shoes are too small, what now?",),
                ("Can I still cancel my order of yesterday?",)]),
    (EXTRACTION, [("Anna from Oslo paid 30 euros.",), ("Anna from Rome paid 30 euros.",),
                  ("Ben from Oslo paid 31.",)]),
    (RAG, [("The river Ob is 3,650 km long.", "How long is the Ob?"),
           ("The river Ob is 3,650 km long.", "Where is it?"),
           ("The Po is 652 km long.", "How long is the Po?")]),
    (SQL, [("How many orders came in May?",), ("How many customers came from Rome?",),
           ("How many orders came in June?",)]),
]  # fmt: skip


def framed(prefix: int, suffix: int, middle: str) -> str:
    return " ".join([*(f"p{i}" for i in range(prefix)), middle, *(f"s{i}" for i in range(suffix))])


def test_a_long_frame_needs_no_witness() -> None:
    a, b = framed(20, 5, "alpha"), framed(20, 5, "beta gamma")
    assert varying_parts(a, b, [b]) == VaryingParts("alpha", "beta gamma")
    assert varying_parts(framed(SURE_WORDS - 1, 0, "alpha"), framed(SURE_WORDS - 1, 0, "beta"), []) is None


def test_a_short_frame_needs_others_that_share_it() -> None:
    a, b, other = (framed(8, 2, middle) for middle in ("alpha", "beta", "gamma"))
    assert varying_parts(a, b, [b]) is None
    assert varying_parts(a, b, [b, b.upper()]) is None  # the same content does not witness
    assert varying_parts(a, b, [b, other]) == VaryingParts("alpha", "beta")


def test_a_frame_that_is_little_of_the_prompt_is_none() -> None:
    long = " ".join(f"x{i}" for i in range(40))
    assert varying_parts(framed(8, 0, long), framed(8, 0, long[:-3] + "!"), [framed(8, 0, "y")]) is not None
    assert varying_parts(framed(8, 0, long), framed(8, 0, long[::-1]), [framed(8, 0, "y")]) is None


def test_spaces_and_case_are_no_content() -> None:
    found = varying_parts(framed(20, 5, "alpha"), framed(20, 5, "alpha").upper().replace(" ", "\n "), [])
    assert found is not None and found.is_same


@given(st.lists(st.sampled_from(ABC), max_size=60), st.lists(st.sampled_from(ABC), max_size=60))
def test_whatever_the_words_what_varies_is_part_of_both(a: list[str], b: list[str]) -> None:
    query, stored = " ".join(a), " ".join(b)
    found = varying_parts(query, stored, [stored, query])
    if found is not None:
        assert found.query in query and found.stored in stored


def test_questions_that_people_ask_in_other_words_have_no_frame() -> None:
    pairs = framed_pairs = 0
    for file in sorted(WORDINGS.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            group = json.loads(line)
            others = [other["text"] for other in group["other"]]
            for query, stored in combinations(group["same"], 2):
                found = varying_parts(query, stored, [stored, *others])
                pairs += 1
                framed_pairs += found is not None and not found.is_same
    assert pairs > 5000
    assert framed_pairs / pairs < 0.01


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    async with gateway_of(config_of(tmp_path, backends, embedder={"adapter": "onnx"}), BOTH_CACHES) as gateway:
        yield gateway


@pytest.mark.parametrize(("template", "contents"), TRAFFIC, ids=["ticket", "customer", "extraction", "rag", "sql"])
async def test_no_content_gets_the_answer_made_for_another(
    served: Served, template: str, contents: list[tuple[str, ...]]
) -> None:
    for content in contents:
        prompt = template.format(*content)
        answer = await served.chat(prompt)
        assert answer.cache_status == "nearhit; fwd=miss; stored", content
        assert answer.text == f"upstream answers: {prompt}"
    spaced = template.format(*contents[-1]).replace(" ", "  ", 3) + "\n"
    again = await served.chat(spaced)
    assert again.cache_status == "nearhit; hit; detail=semantic"
    assert again.text == f"upstream answers: {template.format(*contents[-1])}"


def test_a_short_instruction_before_a_long_text_is_a_template_where_all_neighbours_have_it() -> None:
    frame = "is this message about fraud? answer yes or no: "
    texts = [f"{word} was sent to me by a friend who lives far away from here and never writes" for word in "abcd"]
    query, *stored = [frame + text for text in texts]
    assert varying_parts(query, stored[0], stored) == VaryingParts(texts[0].split()[0], texts[1].split()[0])
    other = ["my card was stolen at the station yesterday evening and somebody has used it since then twice"]
    mixed = [frame + other[0], frame + "where can i see how much money is left on my account at the end of a month"]
    assert varying_parts(query, mixed[0], [*mixed, frame + "why was i charged for it"]) is not None
    assert varying_parts(query, mixed[0], mixed[:1]) is None


FRAUD = "Does this message report theft or fraud? Answer yes or no.\n\n{}"
MESSAGES = (
    "How do I report fraud on my card?",
    "How do I get a new card?",
    "Where is the nearest branch?",
    "My pin is lost",
)


def prompts(frame: str) -> list[str]:
    return [frame.format(message) for message in MESSAGES]


def test_a_word_that_two_contents_share_by_chance_hides_no_template() -> None:
    """Both of the first end with "card?" and begin with "How do I", which the others do not."""
    query, stored, *others = prompts(FRAUD)
    assert varying_parts(query, stored, [stored, *others]) == VaryingParts(MESSAGES[0], MESSAGES[1])


@pytest.mark.parametrize(
    "frame", ["Fraud? Yes or no:\n{}", "Topic: {}", "Classify this message\n\n{}", "Sentiment:\t{}"]
)
def test_an_instruction_of_any_length_is_a_template(frame: str) -> None:
    query, stored, *others = prompts(frame)
    assert varying_parts(query, stored, [stored, *others]) == VaryingParts(MESSAGES[0], MESSAGES[1])
    assert varying_parts(query, stored, [stored]) is None, "nobody else uses it"


def test_words_that_questions_begin_with_are_no_instruction() -> None:
    query, *others = ("How do I pay?", "How do I leave?", "How do I win?", "How do I sing?")
    assert varying_parts(query, others[0], others) is None


def test_a_neighbour_without_the_template_does_not_shorten_it() -> None:
    query, stored, *others = prompts(FRAUD)
    found = varying_parts(query, stored, [stored, *others, "Does this message say anything?", "Where is my card?"])
    assert found == VaryingParts(MESSAGES[0], MESSAGES[1])
