"""What tests of keys do as operators and as clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.config import Config
from tests.fixtures.gateways import Answer, Served, config_of
from tests.fixtures.upstream import Upstream

ADMIN = {"ADMIN_TOKEN": "an-admin-token", "UPSTREAM_KEY": "the-providers-own"}
AS_ADMIN = {"Authorization": "Bearer an-admin-token"}


def keyed(tmp_path: Path, upstream: Upstream, **sections: Any) -> Config:
    """A gateway that asks for keys, on both ports, and has its own for its backend."""
    auth = {"mode": "keys", "admin_token_env": "ADMIN_TOKEN", **sections.pop("auth", {})}
    backend = {"adapter": "openai", "url": upstream.url, "api_key_env": "UPSTREAM_KEY"}
    backend["price"] = {"input_per_million": 1e6, "output_per_million": 1e6}
    return config_of(tmp_path, {"main": backend}, auth=auth, **sections)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def admin(
    served: Served, method: str, path: str, body: Any = None, headers: Mapping[str, str] = AS_ADMIN
) -> Answer:
    async with served.session.request(method, served.admin_url + path, json=body, headers=headers) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def create(served: Served, **terms: Any) -> dict[str, Any]:
    answer = await admin(served, "POST", "/admin/keys", {"name": "app", "tenant": "acme", **terms})
    assert answer.status == 200, answer.body
    made: dict[str, Any] = answer.json
    return made


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit")
