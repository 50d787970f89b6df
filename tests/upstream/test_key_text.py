"""Keys as commands print them and as files hold them."""

from __future__ import annotations

import math

import pytest

from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.key_text import token_of

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
