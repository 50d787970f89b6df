"""The OpenAPI document describes the admin port of a running gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from jsonschema import Draft202012Validator

from docs.tools.openapi import PAGE, SCHEMA, document, text, with_table
from gateway.admin.middleware import ROLES
from tests.features.jobs.asking import submit
from tests.fixtures.gateways import TIERS, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

openapi = cache(document)
READ = [
    "/admin/audit",
    "/admin/backends",
    "/admin/cache/entries",
    "/admin/cache/top",
    "/admin/history",
    "/admin/jobs",
    "/admin/keys",
    "/admin/limits",
    "/admin/policy",
    "/admin/policy/history",
    "/admin/quality",
    "/admin/routing",
    "/admin/stats",
    "/admin/whoami",
]


@asynccontextmanager
async def tiered(light: Upstream, large: Upstream, path: Path) -> AsyncIterator[Served]:
    """Serve a policy with files, so that every operation has an answer."""
    folder = path / "policies"
    folder.mkdir()
    (folder / "default.yaml").write_text(TIERS)
    backends = {
        "light": {"adapter": "openai", "url": light.url, "model": "small"},
        "large": {"adapter": "openai", "url": large.url, "model": "big"},
    }
    config = config_of(path / "data", backends).model_copy(update={"policies": folder})
    async with gateway_of(config, TIERS, policies=folder) as served:
        await served.chat("what is a cache")
        await served.chat("what is a cache")
        yield served


async def call(served: Served, method: str, path: str, body: Any = None) -> Answer:
    given = {"data": body} if isinstance(body, str) else {"json": body}
    async with served.session.request(method, served.admin_url + path, **({} if body is None else given)) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


def closed(schema: Any) -> Any:
    """Return the schema without room for further keys, so that an undocumented one is a fault."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    sealed = {"additionalProperties": False} if schema.get("type") == "object" and "properties" in schema else {}
    return {**sealed, **{key: closed(value) for key, value in schema.items()}}


def faults(answer: Answer, method: str, path: str) -> list[str]:
    """Return the differences of an answer from the schema of its operation."""
    responses: Mapping[str, Any] = openapi()["paths"][path][method.lower()]["responses"]
    response = responses.get(str(answer.status), responses["default"])
    schema = response["content"]["application/json"]["schema"]
    validator = Draft202012Validator({**closed(schema), "components": closed(openapi()["components"])})
    return [f"{path} {error.json_path}: {error.message}" for error in validator.iter_errors(answer.json)]


def test_the_files_are_those_that_the_code_makes() -> None:
    """If this fails: `make schema`."""
    assert SCHEMA.read_text() == text()
    page = PAGE.read_text()
    assert with_table(page) == page


def test_a_page_without_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one"):
        with_table("# Admin API\n")


async def test_every_route_is_described_and_every_description_is_a_route(served: Served) -> None:
    runner = served.gateway.admin_port._runner
    assert runner is not None
    resources = [route for route in runner.app.router.routes() if route.method != "HEAD"]
    registered = {(each.method, each.resource.canonical) for each in resources if each.resource is not None}
    assert registered == {(m.upper(), path) for path, methods in openapi()["paths"].items() for m in methods}


def test_the_roles_are_those_that_the_gateway_requires() -> None:
    for path, methods in openapi()["paths"].items():
        for method, described in methods.items():
            assert described["x-required-role"] == ROLES.get(f"{method.upper()} {path}")
            assert ("security" in described) == (described["x-required-role"] is None)


def test_every_schema_is_valid_and_every_reference_has_a_target() -> None:
    named = openapi()["components"]["schemas"]
    for schema in named.values():
        Draft202012Validator.check_schema(schema)
    for part in json.dumps(openapi()).split('"$ref": "')[1:]:
        target = part.partition('"')[0]
        assert target == "policy.json" or target.removeprefix("#/components/schemas/") in named
    assert (SCHEMA.parent / "policy.json").exists()


async def test_answers_have_the_form_that_is_described(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    async with tiered(light, large, tmp_path) as served:
        found = []
        for path in READ:
            answer = await call(served, "GET", path)
            assert answer.status == 200, (path, answer.body)
            found += faults(answer, "GET", path)
        [entry] = (await call(served, "GET", "/admin/cache/entries")).json["entries"]
        job = await submit(served, "a job")
        for path, name, value in (
            ("/admin/cache/entries/{fingerprint}", "fingerprint", entry["fingerprint"]),
            ("/admin/policy/history/{version}", "version", "1"),
            ("/admin/jobs/{job}", "job", job),
        ):
            answer = await call(served, "GET", path.replace(f"{{{name}}}", value))
            assert answer.status == 200, (path, answer.body)
            found += faults(answer, "GET", path)
        assert not found


async def test_actions_have_the_form_that_is_described(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    calls: list[tuple[str, Any, int]] = [
        ("/admin/cache/purge", {"all": True, "dry_run": True}, 200),
        ("/admin/cache/purge", {"tags": ["unknown"], "route": "unknown"}, 200),
        ("/admin/cache/purge", {}, 400),
        ("/admin/cache/import", "{}\n", 200),
        ("/admin/cache/explain", {"stored": "is tea hot", "asked": "is tea cold"}, 200),
        ("/admin/explain", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, 200),
        ("/admin/jobs/retry", {"all": True}, 200),
        ("/admin/jobs/drop", {"job": "job_0"}, 404),
        ("/admin/quality/reset", {"route": "default"}, 200),
        ("/admin/routing/reset", {"route": "default"}, 200),
        ("/admin/routing/reset", {"route": 1}, 400),
        ("/admin/policy/validate", TIERS, 200),
        ("/admin/policy/validate", TIERS.replace("light: light", "light: none"), 422),
        ("/admin/policy", TIERS.replace("0.5", "0.6"), 200),
        ("/admin/policy/rollback", {"version": 1}, 200),
        ("/admin/policy/rollback", {"version": 99}, 404),
    ]
    async with tiered(light, large, tmp_path) as served:
        found = []
        for path, body, status in calls:
            answer = await call(served, "POST", path, body)
            assert answer.status == status, (path, answer.body)
            found += faults(answer, "POST", path)
        issued = await call(served, "POST", "/admin/keys", {"name": "ci", "tenant": "acme"})
        found += faults(issued, "POST", "/admin/keys")
        key = "/admin/keys/{key}"
        for method, path, body in (
            ("GET", key, None),
            ("POST", key, {"expires": "30d"}),
            ("POST", f"{key}/rotate", None),
            ("POST", f"{key}/revoke", None),
        ):
            answer = await call(served, method, path.replace("{key}", issued.json["id"]), body)
            assert answer.status == 200, (path, answer.body)
            found += faults(answer, method, path)
        found += faults(await call(served, "GET", "/admin/keys?state=all"), "GET", "/admin/keys")
        found += faults(await call(served, "GET", "/admin/audit?source=file"), "GET", "/admin/audit")
        assert not found


async def test_the_parameters_are_read_as_described(served: Served) -> None:
    """A value outside the described range is refused."""
    for path, methods in openapi()["paths"].items():
        for parameter in methods.get("get", {}).get("parameters", []):
            schema = parameter["schema"]
            if "maximum" in schema or "enum" in schema:
                answer = await call(served, "GET", f"{path}?{parameter['name']}={schema.get('maximum', 0) + 1}")
                assert answer.status == web.HTTPBadRequest.status_code, (path, parameter["name"])
