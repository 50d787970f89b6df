"""Keys as commands print them and as files hold them."""

from __future__ import annotations

import math

import pytest

from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.key_text import masked, token_of

NOW = 1_900_000_000.0  # 2030-03-17T17:46:40Z

KEYS = {
    "a trailing newline": (b"sk-1\n", None),
    "a line end of Windows": (b"sk-1\r\n", None),
    "a byte order mark": (b"\xef\xbb\xbfsk-1", None),
    "white space on both sides": (b"  sk-1 \n\n", None),
    "json": (b'{"api_key": "sk-1"}', None),
    "json of the token kind": (b'{"token": "sk-1", "expires_at": "2030-03-17T17:47:40Z"}', 60.0),
    "another zone": (b'{"token": "sk-1", "expires_at": "2030-03-17T18:47:40+01:00"}', 60.0),
    "seconds since the epoch": (b'{"token": "sk-1", "expires_at": 1900000060}', 60.0),
    "seconds as a text": (b'{"token": "sk-1", "expires_at": "1900000060"}', 60.0),
    "gcloud": (b'{"access_token": "sk-1", "expires_in": 60}', 60.0),
    "az account get-access-token": (
        b'{"accessToken": "sk-1", "expiresOn": "2030-03-17 18:47:40.000000", "expires_on": 1900000060}',
        60.0,
    ),
    "an ExecCredential": (
        b'{"kind": "ExecCredential", "status": {"token": "sk-1", "expirationTimestamp": "2030-03-17T17:47:40Z"}}',
        60.0,
    ),
}

NO_KEYS = {
    "nothing": (b"", "is empty"),
    "white space": (b" \n", "is empty"),
    "two lines": (b"sk-secret\nsk-secret", "several lines"),
    "letters beyond ASCII": ("sk-secret-ä".encode(), "visible ASCII"),
    "a control character": (b"sk-secret\x1b[0m", "visible ASCII"),
    "no text": (b"\xff\xfesk-secret", "not UTF-8"),
    "half an object": (b'{"token": "sk-secret"', "is no JSON"),
    "an object without a key": (b'{"secret": "sk-secret"}', "has no key"),
    "a key that is a number": (b'{"token": 5}', "has no key"),
    "a time without a zone": (b'{"token": "sk-secret", "expires_at": "2030-03-17 17:47"}', "no time with a zone"),
    "an end that is none": (b'{"token": "sk-secret", "expires_at": true}', "is no number"),
    "an end beyond time": (b'{"token": "sk-secret", "expires_in": "inf"}', "is no number"),
    "a key that is a book": (b"s" * 20_000, "at most 16384"),
}


@pytest.mark.parametrize(("text", "life_s"), KEYS.values(), ids=KEYS)
def test_a_key_is_read_as_tools_write_it(text: bytes, life_s: float | None) -> None:
    token = token_of(text, NOW)
    assert token.value == "sk-1"
    assert token.life_s is None if life_s is None else math.isclose(token.life_s or 0, life_s)


@pytest.mark.parametrize(("text", "why"), NO_KEYS.values(), ids=NO_KEYS)
def test_a_text_that_is_no_key_is_told_without_the_text(text: bytes, why: str) -> None:
    with pytest.raises(NoCredentials, match=why) as raised:
        token_of(text, NOW)
    assert "sk-secret" not in str(raised.value)


WORDS = {
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY is refused": "*** is refused",
    "key eyJhbGciOi.eyJ9xxx.1234567890abc is bad": "key *** is bad",
    "+ curl -d client_secret=hunt.er https://login": "+ curl -d client_secret=*** https://login",
    "+ helper --client-secret hunter --json": "+ helper --client-secret *** --json",
    '{"password": "hunter"}': '{"password": "***"}',
    "no token: connection refused": "no token: connection refused",
    "400 of https://login.example.com/oauth2/v2.0/token": "400 of https://login.example.com/oauth2/v2.0/token",
    "/usr/lib/python3.11/site-packages/azure/x.py:33": "/usr/lib/python3.11/site-packages/azure/x.py:33",
    "two\nlines\x1b[0m": "two lines?[0m",
}


@pytest.mark.parametrize(("words", "line"), WORDS.items())
def test_what_looks_like_a_secret_in_the_words_of_others_is_masked(words: str, line: str) -> None:
    assert masked(words) == line


def test_a_known_secret_is_masked_whatever_it_looks_like() -> None:
    assert masked("+ echo horse staple", "horse staple") == "+ echo ***"


@pytest.mark.parametrize("piece", ["=", "+", "a=", "ab/", "token", "token=", "--a", "1", "- "])
def test_a_bar_of_progress_is_masked_in_time_that_grows_with_its_length(piece: str) -> None:
    """A quadratic search would take minutes, and end with the time limit of the suite."""
    for _ in range(4):
        assert masked(piece * (64_000 // len(piece)))
