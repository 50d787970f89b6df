"""Clients whose base URL is wrong: they get the backend's own answer, and the log says what is likely meant."""

from __future__ import annotations

import logging
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from gateway.dialects.known import suggest_path
from tests.fixtures.gateways import Served
from tests.fixtures.upstream import Upstream

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("method", "path", "likely"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/embeddings", "/v1/embeddings"),
        ("POST", "/messages", "/v1/messages"),
        ("GET", "/models", "/v1/models"),
        ("POST", "/v1/v1/messages", "/v1/messages"),
        ("GET", "/chat/completions", None),
        ("POST", "/v1/messages/count_tokens", None),
        ("POST", "/v1/chat/completions", None),
        ("GET", "/v1/models", None),
        ("POST", "/", None),
        ("POST", "/v1", None),
    ],
)
def test_what_a_path_is_likely_to_mean(method: str, path: str, likely: str | None) -> None:
    assert suggest_path(method, path) == likely


def warned(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [record for record in caplog.records if record.name == "nearhit" and "base URL" in record.getMessage()]
    return [record.fields for record in found]  # type: ignore[attr-defined]


async def test_a_base_url_without_its_version_is_told_in_the_log(
    served: Served, absent: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "nearhit"):
        async with openai.AsyncOpenAI(base_url=served.url, api_key="k", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError) as raised:
                await client.chat.completions.create(model="m", messages=MESSAGES)
    assert raised.value.body == {"detail": "Not Found"}, "the backend's own answer"
    assert [call.path for call in absent.calls] == ["/chat/completions"]
    (said,) = warned(caplog)
    assert (said["path"], said["likely"]) == ("/chat/completions", "/v1/chat/completions")


async def test_a_version_that_stands_twice_is_told_too(
    served: Served, absent: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "nearhit"):
        async with anthropic.AsyncAnthropic(base_url=served.url + "/v1", api_key="k", max_retries=0) as client:
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(model="m", max_tokens=5, messages=MESSAGES)
    (said,) = warned(caplog)
    assert (said["path"], said["likely"]) == ("/v1/v1/messages", "/v1/messages")


async def test_a_path_that_the_backend_has_is_its_own_and_any_other_is_no_mistake(
    served: Served, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"mine": True}, status=404 if request.path == "/somewhere" else 200)

    upstream.answer = answer
    with caplog.at_level(logging.WARNING, "nearhit"):
        assert (await served.post("/chat/completions", {})).json == {"mine": True}
        assert (await served.post("/somewhere", {})).status == 404
    assert warned(caplog) == []
