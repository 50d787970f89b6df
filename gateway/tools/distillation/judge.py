"""A model that is asked about two answers where words and embeddings cannot tell, as `route.audit` asks one."""

from __future__ import annotations

import http.client
import secrets
from urllib.parse import urlsplit

import orjson

from gateway.cache.judge_prompt import MAX_TOKENS, judge_prompt, verdict_of
from gateway.cache.threshold.wrong_hits import Label
from gateway.dialects.openai import CHAT, chat_body
from gateway.tools.distillation.data import Row
from gateway.tools.distillation.evaluation import Judged

TIMEOUT_S = 120.0


class JudgeSilent(Exception):
    """One sentence: the judge could not be asked."""


class Judge:
    """A `Judged`. `url`: of an endpoint that speaks OpenAI's protocol, or of a gateway; `first`: who is asked before.
    Raises `JudgeSilent` where it does not answer: figures of which some part was judged would be of no use."""

    def __init__(self, url: str, model: str, key: str | None, first: Judged) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url, self._path = url, parts.path.rstrip("/").removesuffix("/v1") + CHAT
        self._connection = kind(parts.netloc, timeout=TIMEOUT_S)
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._model, self._first = model, first

    def __call__(self, row: Row, text: str) -> Label:
        told = self._first(row, text)
        if told is not Label.UNDECIDED:
            return told
        prompt = judge_prompt(row.text, row.label, text, secrets.token_hex(8))
        return Label.UNDECIDED if prompt is None else verdict_of(self._asked(prompt))

    def _asked(self, prompt: str) -> str | None:
        try:
            self._connection.request(
                "POST", self._path, chat_body(prompt, model=self._model, max_tokens=MAX_TOKENS), self._headers
            )
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise JudgeSilent(f"the judge at {self._url} could not be asked: {error}") from None
        finally:
            self._connection.close()  # between two questions the student writes: a server may not wait for so long
        if answer.status != 200:
            raise JudgeSilent(f"the judge at {self._url} answered with status {answer.status}, expected 200")
        try:
            said: str | None = orjson.loads(body)["choices"][0]["message"]["content"]
        except (orjson.JSONDecodeError, LookupError, TypeError):
            raise JudgeSilent(f"the judge at {self._url} answered with something else than a chat completion") from None
        return said
