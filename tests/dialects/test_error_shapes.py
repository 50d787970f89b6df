"""Errors of backends keep their message in the other protocol, in whatever shape the backend puts it."""

from __future__ import annotations

import pytest

from gateway.dialects.translation.reading import error_message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"no such model","code":404}}', "no such model"),
        (b'{"error":"no such model"}', "no such model"),
        (b'{"object":"error","message":"no such model","code":404}', "no such model"),
        (b'{"detail":"no such model"}', "no such model"),
        (b'[{"error":{"message":"no such model"}}]', "no such model"),
        (b'{"error":{"code":404}}', "the backend answered with status 404"),
        (b'{"detail":[{"loc":["body"],"msg":"x"}]}', "the backend answered with status 404"),
        (b"[]", "the backend answered with status 404"),
        (b"<html>secret</html>", "the backend answered with status 404"),
    ],
)
def test_the_message_of_an_error_is_found_in_each_shape(body: bytes, said: str) -> None:
    assert error_message(404, body) == said
