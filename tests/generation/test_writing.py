"""Texts that come token by token: whole signs, and nothing of a stop string."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.writing import Writing
from gateway.messages import Token

TEXTS = st.lists(st.text("ab.", max_size=3) | st.none(), max_size=12)
STOPS = st.lists(st.text("ab.", min_size=1, max_size=3), max_size=3)


def written(decoded: list[str | None], stops: list[str]) -> tuple[list[str], list[Token], Writing]:
    tokens = [Token(f"{i}", b"", 0.0) for i in range(len(decoded))]
    writing = Writing(lambda number: decoded[number], stops)
    texts, told = [], []
    for number, token in enumerate(tokens):
        text, made_of = writing.add(number, token)
        texts.append(text)
        told += made_of
        if writing.stopped:
            break
    text, made_of = writing.end()
    return [*texts, text], [*told, *made_of], writing


@given(TEXTS, STOPS)
def test_the_text_ends_before_the_first_stop_string(decoded: list[str | None], stops: list[str]) -> None:
    whole = "".join(text or "" for text in decoded)
    texts, _, writing = written(decoded, stops)
    said = "".join(texts)
    assert whole.startswith(said)
    assert not any(stop in said for stop in stops)
    if writing.stopped:
        assert any(whole[len(said) :].startswith(stop) for stop in stops)
    else:
        assert said == whole


@given(TEXTS)
def test_without_stop_strings_every_token_is_told_once_and_nothing_waits(decoded: list[str | None]) -> None:
    texts, told, _ = written(decoded, [])
    assert [token.text for token in told] == [str(i) for i in range(len(decoded))]
    assert texts == [text or "" for text in decoded] + [""]


def test_what_may_begin_a_stop_string_waits() -> None:
    texts, told, _ = written(["one ", "##", "# two", " #", "x"], ["###"])
    assert texts == ["one ", "", "", ""], "and the rest is not said"
    assert [token.text for token in told] == ["0"]
    texts, _, _ = written(["one ", "##", "two"], ["###"])
    assert texts == ["one ", "", "##two", ""]


def test_of_a_token_that_runs_into_a_stop_string_its_probability_is_told() -> None:
    texts, told, _ = written(["one", " two END", "x"], ["END"])
    assert "".join(texts) == "one two "
    assert [token.text for token in told] == ["0", "1"]
