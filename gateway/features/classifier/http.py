"""A classifier behind an HTTP endpoint: one POST for each text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import aiohttp
import orjson

from gateway.features.classifier.answers import read_json
from gateway.features.classifier.question import (
    ClassifierAnswer,
    ClassifierAnswerInvalid,
    ClassifierFailed,
    ClassifierQuestion,
)

MAX_ANSWER_BYTES = 4096
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


class HttpClassifier:
    """`HttpClassifier` posts `{"text", "route", "model", "operation", "max_tokens"}` as JSON.

    It sends no header of the client and no credentials, and follows no redirect. `session` returns the HTTP session,
    which bounds the connections and which its owner closes.
    """

    def __init__(self, url: str, session: Callable[[], aiohttp.ClientSession]) -> None:
        self._url = url
        self._session = session

    async def ask(self, question: ClassifierQuestion) -> ClassifierAnswer:
        body = orjson.dumps(asdict(question))
        try:
            async with self._session().post(self._url, data=body, headers=HEADERS, allow_redirects=False) as response:
                if response.status != 200:
                    raise ClassifierFailed(f"it answered with status {response.status}")
                return read_json(await _read(response.content))
        except (aiohttp.ClientError, OSError) as error:
            raise ClassifierFailed(f"the call failed: {type(error).__name__}") from None

    async def close(self) -> None:
        """Do nothing: the session belongs to its owner."""


async def _read(content: aiohttp.StreamReader) -> bytes:
    body = b""
    while piece := await content.read(MAX_ANSWER_BYTES + 1 - len(body)):
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise ClassifierAnswerInvalid(f"its answer is larger than {MAX_ANSWER_BYTES} bytes")
    return body
