"""No spelling of a path leads past the routes, the caches and the limits of that path."""

from __future__ import annotations

import json

import pytest
from yarl import URL

from tests.fixtures.gateways import Served
from tests.fixtures.upstream import Upstream

BODY = {"model": "m", "messages": [{"role": "user", "content": "Which ports?"}]}
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    "path",
    ["/v1/chat/%63ompletions", "/v1/x/%2e./chat/completions", "/v1//chat/completions/", "/v1/chat%2Fcompletions"],
)
async def test_a_path_in_another_spelling_is_forwarded_as_it_was_matched(
    served: Served, upstream: Upstream, path: str, plain: bool
) -> None:
    """`plain`: the gateway's own parser reads the head; otherwise aiohttp does."""
    headers = {} if plain else {"Upgrade": "x"}
    assert (await served.post(CHAT, BODY)).status == 200
    url = URL(served.url + path, encoded=True)
    async with served.session.post(url, data=json.dumps(BODY), headers=headers) as answer:
        assert answer.headers["Cache-Status"].startswith("nearhit; hit; detail=exact")
    assert [call.path for call in upstream.calls] == [CHAT]
