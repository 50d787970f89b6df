"""A resource that a backend made is asked of that backend: responses, files, batches, threads and the like."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from gateway.errors import StoreUnavailable
from gateway.features.resource_affinity.affinity import ResourceAffinity, affinity_key
from gateway.features.resource_affinity.redis import RedisAffinity
from gateway.features.resource_affinity.step import SharedResources
from gateway.messages import Affinity
from tests.fixtures.gateways import NO_CACHE, PATIENT_S, Answer, Served, config_of, gateway_of, store_pid
from tests.fixtures.responses import response_to, text_item
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream, chunk, completion, frame, serving
from tests.fixtures.waiting import until

EASY = "What is the capital of Italy?"
HARD = (
    "Explain step by step why this function deadlocks, compare three designs that avoid it, and prove that yours does "
    "not:\n```\ndef f(a, b):\n    with a, b: pass\n```\nThe answer must be a table and must not exceed 300 words."
)
TIERED = """
version: 1
routes:
  - name: default
    match: {}
    route: {light: light, large: large, escalate_above: 0.5, fallback: []}
"""
CACHED = TIERED.replace("    route:", "    cache: {exact: {ttl: 1h}}\n    route:")
SESSIONS = TIERED.replace("    route:", "    session: {idle: 10m}\n    route:")
BY_MODEL = """
version: 1
routes:
  - name: small
    match: {path: /v1/chat/completions, model: "small-*"}
    route: {backend: light}
  - name: responses
    match: {path: /v1/responses}
    route: {backend: light}
  - name: default
    match: {}
    route: {backend: large}
"""
MISSING = {"error": {"message": "not found", "type": "invalid_request_error", "code": None, "param": None}}


def makers_of(served: Served) -> ResourceAffinity:
    resources = served.gateway.parts.resources()
    assert isinstance(resources, SharedResources)
    return resources.affinity


class Maker:
    """An endpoint that stores what it makes, and knows nothing else."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.name = upstream.name
        self.made: set[str] = set()
        self.models: set[str] = set()
        self._number = itertools.count(1)
        upstream.answer = self.answer

    def make(self, kind: str) -> str:
        made = f"{kind}_{self.name}_{next(self._number)}"
        self.made.add(made)
        return made

    @property
    def paths(self) -> list[str]:
        return [f"{call.method} {call.path}" for call in self.upstream.calls]

    async def answer(self, request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        path, known = request.path.removeprefix("/v1"), self._knows(request, call)
        if path.startswith("/models"):
            return self._models(path)
        if not known:
            return web.json_response(MISSING, status=404)
        if path == "/responses" and request.method == "POST":
            return await self._respond(request, call)
        if path == "/chat/completions" and request.method == "POST":
            return await self._chat(request, call)
        if path == "/threads/runs" and call.get("stream"):
            return await self._run(request)
        segments = path.strip("/").split("/")
        if request.method == "POST" and not any(each in self.made for each in segments):
            return await self._make(request, segments[0])
        body = {"id": segments[1], "by": self.name, "output_file_id": self.make("out")}
        return web.json_response(body)

    def _knows(self, request: web.Request, call: Any) -> bool:
        """Whether everything that looks like an id was made here."""
        said = f"{request.path_qs} {json.dumps(call)}"
        return all(each in self.made for each in re.findall(r"[a-z]+_(?:light|large|one|two)_\d+", said))

    def _models(self, path: str) -> web.Response:
        name = path.removeprefix("/models").lstrip("/")
        if not name:
            return web.json_response({"object": "list", "data": [{"id": f"{self.name}-listed", "object": "model"}]})
        if name in self.models:
            return web.json_response({"id": name, "object": "model", "owned_by": self.name})
        return web.json_response(MISSING, status=404)

    async def _respond(self, request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        whole = response_to(call, text_item(f"by {self.name}", id=self.make("msg")), id=self.make("resp"))
        if not call.get("stream"):
            return web.json_response(whole)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        opened = {**whole, "status": "in_progress", "output": []}
        for kind, fields in (
            ("response.created", {"response": opened}),
            ("response.output_item.added", {"item": {**whole["output"][0], "content": []}, "output_index": 0}),
            ("response.completed", {"response": whole}),
        ):
            await out.write(f"event: {kind}\n".encode() + frame({"type": kind, "sequence_number": 0, **fields}))
        return out

    async def _chat(self, request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        made = {**completion(call, f"by {self.name}"), "id": self.make("chatcmpl")}
        if not call.get("stream"):
            return web.json_response(made)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for delta, finish in (({"role": "assistant", "content": "by"}, None), ({}, "stop")):
            await out.write(chunk(call, delta, finish).replace(b"cmpl-1", made["id"].encode()))
        await out.write(b"data: [DONE]\n\n")
        return out

    async def _run(self, request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await out.write(b"event: thread.created\n" + frame({"id": self.make("thread"), "object": "thread"}))
        await out.write(b"event: done\ndata: [DONE]\n\n")
        return out

    async def _make(self, request: web.Request, kind: str) -> web.StreamResponse:
        body = json.dumps({"id": self.make(kind.replace("_", "").rstrip("s")), "by": self.name}).encode()
        if request.headers.get("accept-encoding", "identity") != "identity":
            return web.Response(body=b"compressed", headers={"Content-Encoding": "br"})
        out = web.StreamResponse(headers={"Content-Type": "application/json"})
        await out.prepare(request)  # chunked, in two pieces
        await out.write(body[:5])
        await out.write(body[5:])
        return out


class Tiers:
    """A gateway before a light and a large maker."""

    def __init__(self, served: Served, light: Maker, large: Maker) -> None:
        self.served, self.light, self.large = served, light, large

    async def respond(self, question: str, **fields: Any) -> str:
        """Return the id of a response."""
        answer = await self.served.post("/v1/responses", {"model": "m", "input": question, **fields})
        assert answer.status == 200, answer.body
        made = re.search(rb'"id":\s*"(resp_[^"]+)"', answer.body)
        assert made is not None
        return made[1].decode()

    async def send(self, method: str, path: str, **options: Any) -> Answer:
        async with self.served.session.request(method, self.served.url + path, **options) as response:
            return Answer(response.status, response.headers.copy(), await response.read())


@pytest.fixture
async def makers(light: Upstream, large: Upstream) -> tuple[Maker, Maker]:
    return Maker(light), Maker(large)


def backends_of(makers: tuple[Maker, Maker], **more: Any) -> dict[str, Any]:
    return {each.name: {"adapter": "openai", "url": each.upstream.url, **more} for each in makers}


@asynccontextmanager
async def before(
    folder: Path, makers: tuple[Maker, Maker], policy: str = TIERED, **sections: Any
) -> AsyncIterator[Tiers]:
    more = sections.pop("backend", {})
    async with gateway_of(config_of(folder, backends_of(makers, **more), **sections), policy) as served:
        yield Tiers(served, *makers)


@pytest.fixture
async def tiers(tmp_path: Path, makers: tuple[Maker, Maker]) -> AsyncIterator[Tiers]:
    async with before(tmp_path, makers) as tiers:
        yield tiers


OPERATIONS = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/cancel"),
    ("GET", "/input_items?limit=2"),
    ("GET", "?stream=true"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", ["own", "aiohttp"])
async def test_a_response_is_asked_of_the_backend_that_made_it(
    tmp_path: Path, makers: tuple[Maker, Maker], client: str, stream: bool
) -> None:
    async with before(tmp_path, makers, backend={"client": client}) as tiers:
        for question, name in ((EASY, "light"), (HARD, "large")):
            made = await tiers.respond(question, stream=stream)
            assert name in made
            for method, rest in OPERATIONS:
                answer = await tiers.send(method, f"/v1/responses/{made}{rest}")
                assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, name), (method, rest)


@pytest.mark.parametrize("policy", [TIERED, CACHED, SESSIONS], ids=["uncached", "cached", "sessions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_continuation_goes_to_its_maker_whatever_its_complexity(
    tmp_path: Path, makers: tuple[Maker, Maker], policy: str, stream: bool
) -> None:
    async with before(tmp_path, makers, policy) as tiers:
        for first, second in ((EASY, HARD), (HARD, EASY)):
            made = await tiers.respond(first)
            continued = await tiers.respond(second, previous_response_id=made, stream=stream)
            assert continued.split("_")[1] == made.split("_")[1]
            assert (await tiers.respond(first, previous_response_id=continued)).split("_")[1] == made.split("_")[1]


async def test_a_background_response_is_polled_where_it_runs(tiers: Tiers) -> None:
    made = await tiers.respond(EASY, background=True)
    for _ in range(3):
        assert (await tiers.send("GET", f"/v1/responses/{made}")).json["by"] == "light"
    assert not tiers.large.paths


BODIES: dict[str, dict[str, Any]] = {
    "a part of the input": {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "ID"}]}]},
    "a picture": {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "ID"}]}]},
    "an item": {"input": [{"type": "item_reference", "id": "ID"}, {"role": "user", "content": EASY}]},
    "a search": {"input": EASY, "tools": [{"type": "file_search", "vector_store_ids": ["ID"]}]},
    "a container": {"input": EASY, "tools": [{"type": "code_interpreter", "container": "ID"}]},
    "files of a container": {
        "input": EASY,
        "tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["ID"]}}],
    },
    "a conversation": {"input": EASY, "conversation": "ID"},
    "a conversation's object": {"input": EASY, "conversation": {"id": "ID"}},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_call_that_names_a_resource_goes_to_its_maker(tiers: Tiers, body: dict[str, Any]) -> None:
    made = (await tiers.send("POST", "/v1/files", json={})).json["id"]  # the large backend makes what passes through
    assert made == "file_large_1"
    said = json.loads(json.dumps({"model": "m", **body}).replace("ID", made))
    answer = await tiers.served.post("/v1/responses", said)
    assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "large")
    del said["input"]
    answer = await tiers.served.post("/v1/responses", {"model": "m", "input": EASY})
    assert answer.headers["x-nearhit-backend"] == "light"


async def test_a_chat_with_a_file_goes_to_the_backend_that_has_it(tiers: Tiers) -> None:
    made = (await tiers.send("POST", "/v1/files", json={})).json["id"]
    parts = [{"type": "text", "text": EASY}, {"type": "file", "file": {"file_id": made}}]
    chat = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    answer = await tiers.served.post("/v1/chat/completions", chat)
    assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "large")


async def test_items_of_a_response_are_known_to_its_maker(tiers: Tiers) -> None:
    for stream in (False, True):
        await tiers.respond(HARD, stream=stream)
        item = sorted(each for each in tiers.large.made if each.startswith("msg"))[-1]
        given = [{"type": "item_reference", "id": item}, {"role": "user", "content": EASY}]
        answer = await tiers.served.post("/v1/responses", {"model": "m", "input": given})
        assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "large")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_completion_is_asked_of_its_maker(tiers: Tiers, stream: bool) -> None:
    await tiers.served.chat(EASY, store=True, stream=stream)
    made = next(each for each in tiers.light.made if each.startswith("chatcmpl"))
    for method, rest in (("GET", ""), ("POST", ""), ("GET", "/messages"), ("DELETE", "")):
        answer = await tiers.send(method, f"/v1/chat/completions/{made}{rest}", json={} if method == "POST" else None)
        assert answer.json["by"] == "light"


CHAINS = {
    "a batch": ("files", "batches", {"input_file_id": "ID"}),
    "a vector store": ("files", "vector_stores", {"file_ids": ["ID"]}),
    "an assistant": ("vector_stores", "assistants", {"tool_resources": {"file_search": {"vector_store_ids": ["ID"]}}}),
    "a fine-tuning job": ("files", "fine_tuning", {"training_file": "ID"}),
    "a thread": ("files", "threads", {"messages": [{"role": "user", "attachments": [{"file_id": "ID"}]}]}),
}


@pytest.mark.parametrize(("first", "second", "body"), CHAINS.values(), ids=CHAINS)
async def test_what_is_made_of_a_resource_is_made_beside_it(
    tmp_path: Path, makers: tuple[Maker, Maker], first: str, second: str, body: dict[str, Any]
) -> None:
    async with before(tmp_path, makers) as tiers:
        tiers.light.made.add("found_light_9")  # one that was made before the gateway knew
        assert (await tiers.send("GET", f"/v1/{first}/found_light_9")).json["by"] == "light"
        said = json.loads(json.dumps(body).replace("ID", "found_light_9"))
        made = await tiers.send("POST", f"/v1/{second}", json=said, headers={"Accept-Encoding": "br"})
        assert made.json["by"] == "light"
        assert (await tiers.send("GET", f"/v1/{second}/{made.json['id']}")).json["by"] == "light"


async def test_the_results_of_a_batch_are_where_the_batch_is(tiers: Tiers) -> None:
    tiers.light.made.add("batch_light_9")
    result = (await tiers.send("GET", "/v1/batches/batch_light_9")).json["output_file_id"]
    asked = len(tiers.large.paths)
    assert (await tiers.send("GET", f"/v1/files/{result}/content")).json["by"] == "light"
    assert len(tiers.large.paths) == asked


async def test_a_fine_tuned_model_is_called_where_it_was_made(tiers: Tiers) -> None:
    tuned = "ft:base:acme::light_light_9"
    tiers.light.made.add("light_light_9")
    tiers.light.made.add("job_light_9")

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.path == "/v1/fine_tuning/jobs/job_light_9":
            return web.json_response({"id": "job_light_9", "fine_tuned_model": tuned, "result_files": ["file_light_9"]})
        return await tiers.light.answer(request, call)

    tiers.light.upstream.answer = answer
    assert (await tiers.send("GET", "/v1/fine_tuning/jobs/job_light_9")).json["fine_tuned_model"] == tuned
    chat = {"model": tuned, "messages": [{"role": "user", "content": HARD}]}
    assert (await tiers.served.post("/v1/chat/completions", chat)).headers["x-nearhit-backend"] == "light"
    assert (await tiers.send("DELETE", f"/v1/models/{tuned}")).headers["x-nearhit-backend"] == "light"
    assert (await tiers.send("GET", "/v1/files/file_light_9/content")).headers["x-nearhit-backend"] == "light"


async def test_a_call_that_is_named_by_its_location_is_asked_of_its_maker(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        makers = [Maker(await stack.enter_async_context(serving(Upstream(name)))) for name in ("one", "two")]
        for maker in makers:

            async def answer(request: web.Request, call: dict[str, Any], maker: Maker = maker) -> web.StreamResponse:
                if request.path == "/v1/realtime/calls":
                    location = f"https://upstream.example/v1/realtime/calls/rtc_{maker.name}"
                    return web.Response(status=201, text="v=0", headers={"Location": location})
                return web.json_response({"by": maker.name})

            maker.upstream.answer = answer
        backend = {"adapter": "openai", "upstreams": [maker.upstream.url for maker in makers]}
        policy = "version: 1\nroutes:\n  - name: default\n    match: {}\n    route: {backend: main}\n"
        served = await stack.enter_async_context(gateway_of(config_of(tmp_path, {"main": backend}), policy))
        tiers = Tiers(served, *makers)
        made = {(await tiers.send("POST", "/v1/realtime/calls", json="v=0")).headers["Location"] for _ in range(12)}
        assert {location.rpartition("_")[2] for location in made} == {"one", "two"}
        for name in ("one", "two") * 3:
            answered = await tiers.send("POST", f"/v1/realtime/calls/rtc_{name}/hangup")
            assert answered.json["by"] == name


async def test_a_thread_of_a_streamed_run_is_where_it_was_made(tmp_path: Path, makers: tuple[Maker, Maker]) -> None:
    async with before(tmp_path, makers) as tiers:
        tiers.light.made.add("asst_light_9")
        await tiers.send("GET", "/v1/assistants/asst_light_9")
        await tiers.send("POST", "/v1/threads/runs", json={"assistant_id": "asst_light_9", "stream": True})
        made = next(each for each in tiers.light.made if each.startswith("thread"))
        assert (await tiers.send("GET", f"/v1/threads/{made}/messages")).json["by"] == "light"
        assert tiers.large.paths == ["GET /v1/assistants/asst_light_9"]


async def test_an_id_that_nobody_remembers_is_asked_of_each_backend_once(tiers: Tiers) -> None:
    tiers.light.made.add("resp_light_9")
    for _ in range(2):
        assert (await tiers.send("GET", "/v1/responses/resp_light_9")).json["by"] == "light"
    assert tiers.large.paths == ["GET /v1/responses/resp_light_9"]
    absent = await tiers.send("GET", "/v1/responses/resp_light_10")
    assert (absent.status, absent.json, absent.headers["x-nearhit-backend"]) == (404, MISSING, "large")
    assert (await tiers.send("DELETE", "/v1/responses/resp_light_11")).status == 404
    assert not any("DELETE" in path for path in tiers.light.paths)


async def test_a_maker_that_fails_is_not_replaced_by_another_backend(tiers: Tiers) -> None:
    made = await tiers.respond(EASY)

    async def failing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "broken"}}, status=500)

    tiers.light.upstream.answer = failing
    answer = await tiers.send("GET", f"/v1/responses/{made}")
    assert (answer.status, answer.headers["x-nearhit-backend"]) == (500, "light")
    answer = await tiers.served.post("/v1/responses", {"model": "m", "input": HARD, "previous_response_id": made})
    assert (answer.status, answer.headers["x-nearhit-backend"]) == (500, "light")
    assert not tiers.large.paths


async def test_a_resource_of_another_route_is_found(tmp_path: Path, makers: tuple[Maker, Maker]) -> None:
    async with before(tmp_path, makers, BY_MODEL) as tiers:
        made = await tiers.respond(HARD)
        assert (await tiers.send("GET", f"/v1/responses/{made}")).json["by"] == "light"
        assert not tiers.large.paths


async def test_an_id_of_another_tenant_is_an_unknown_one(tmp_path: Path, makers: tuple[Maker, Maker]) -> None:
    async with before(tmp_path, makers) as tiers:
        made = (
            await tiers.served.post("/v1/responses", {"model": "m", "input": EASY}, {"Authorization": "Bearer a"})
        ).json["id"]
        continued = {"model": "m", "input": HARD, "previous_response_id": made}
        answer = await tiers.served.post("/v1/responses", continued, {"Authorization": "Bearer b"})
        assert (answer.status, answer.headers["x-nearhit-backend"]) == (404, "large")
        answer = await tiers.send("DELETE", f"/v1/responses/{made}", headers={"Authorization": "Bearer b"})
        assert (answer.status, answer.headers["x-nearhit-backend"]) == (404, "large")
        answer = await tiers.served.post("/v1/responses", continued, {"Authorization": "Bearer a"})
        assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "light")


async def test_an_upstream_of_several_is_asked_for_what_it_made(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        makers = [Maker(await stack.enter_async_context(serving(Upstream(name)))) for name in ("one", "two")]
        backend = {"adapter": "openai", "upstreams": [maker.upstream.url for maker in makers]}
        policy = "version: 1\nroutes:\n  - name: default\n    match: {}\n    route: {backend: main}\n"
        served = await stack.enter_async_context(gateway_of(config_of(tmp_path, {"main": backend}), policy))
        tiers = Tiers(served, *makers)
        made = [await tiers.respond(f"{EASY} {i}") for i in range(8)]
        assert {each.split("_")[1] for each in made} == {"one", "two"}
        for each in made * 2:
            assert (await tiers.send("GET", f"/v1/responses/{each}")).json["by"] == each.split("_")[1]
            assert (await tiers.respond(HARD, previous_response_id=each)).split("_")[1] == each.split("_")[1]
        makers[0].made.add("file_one_9")
        makers[1].made.add("file_two_9")
        for each in ("one", "two"):
            assert (await tiers.send("GET", f"/v1/files/file_{each}_9")).json["by"] == each


@asynccontextmanager
async def of_two_addresses(folder: Path, **more: Any) -> AsyncIterator[tuple[Tiers, Maker, str]]:
    """A gateway before a backend of two addresses, with the maker and the id of a response."""
    async with AsyncExitStack() as stack:
        makers = [Maker(await stack.enter_async_context(serving(Upstream(name)))) for name in ("one", "two")]
        backend = {"adapter": "openai", "upstreams": [maker.upstream.url for maker in makers], **more}
        served = await stack.enter_async_context(gateway_of(config_of(folder, {"main": backend}), NO_CACHE))
        tiers = Tiers(served, *makers)
        made = await tiers.respond(EASY)
        yield tiers, next(maker for maker in makers if made in maker.made), made


@pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
async def test_a_maker_that_fails_is_not_replaced_by_another_address(tmp_path: Path, status: int) -> None:
    async def failing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=status, headers={"Retry-After": "30"})

    async with of_two_addresses(tmp_path) as (tiers, maker, made):
        maker.upstream.answer = failing
        continued = {"model": "m", "input": HARD, "previous_response_id": made}
        for i in range(3):
            statuses = {status} if i == 0 or status != 503 else {429}  # the gateway's own while the address waits
            assert {(await tiers.send("GET", f"/v1/responses/{made}")).status} == statuses
            assert {(await tiers.served.post("/v1/responses", continued)).status} <= {status, 429}
        (other,) = {tiers.light, tiers.large} - {maker}
        assert not any(made in call.path or made.encode() in call.body for call in other.upstream.calls)


async def test_errors_about_a_resource_eject_no_address(tmp_path: Path) -> None:
    async with of_two_addresses(tmp_path) as (tiers, maker, made):
        maker.made.remove(made)
        continued = {"model": "m", "input": HARD, "previous_response_id": made}
        for _ in range(8):
            assert (await tiers.send("GET", f"/v1/responses/{made}")).status == 404
            assert (await tiers.served.post("/v1/responses", continued)).status == 404
        assert [each.breaker.failures for each in tiers.served.gateway.parts.pools["main"].endpoints] == [0, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_who_gets_a_shared_answer_from_the_cache_goes_on_at_its_maker(
    tmp_path: Path, makers: tuple[Maker, Maker], stream: bool
) -> None:
    policy = CACHED.replace("1h}}", "1h}, share: global}")
    async with before(tmp_path, makers, policy) as tiers:
        asked = {"model": "m", "input": EASY, "stream": stream}
        for tenant in "ab":
            answer = await tiers.served.post("/v1/responses", asked, {"Authorization": f"Bearer {tenant}"})
        assert "hit" in answer.cache_status
        made = re.findall(rb"resp_light_[0-9]+", answer.body)[0].decode()
        continued = {"model": "m", "input": HARD, "previous_response_id": made}
        answer = await tiers.served.post("/v1/responses", continued, {"Authorization": "Bearer b"})
        assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "light")


async def test_another_gateway_and_a_restarted_one_know_the_maker(
    tmp_path: Path, makers: tuple[Maker, Maker], outside_store: OutsideServer
) -> None:
    store = {"url": outside_store.url}
    async with before(tmp_path / "a", makers, store=store) as first:
        async with before(tmp_path / "b", makers, store=store) as second:
            made = await first.respond(EASY)
            await until(lambda: makers_of(first.served)._writer is None)
            assert (await second.send("GET", f"/v1/responses/{made}")).json["by"] == "light"
            assert (await second.respond(HARD, previous_response_id=made)).startswith("resp_light")
        async with before(tmp_path / "c", makers, store=store) as third:
            assert (await third.send("GET", f"/v1/responses/{made}")).json["by"] == "light"
    assert not any("GET" in path for path in makers[1].paths)


async def test_without_the_store_memory_answers(tmp_path: Path, makers: tuple[Maker, Maker]) -> None:
    class Away:
        async def find(self, keys: Any) -> list[Affinity | None]:
            raise StoreUnavailable("away")

        async def add(self, made: Mapping[bytes, Affinity]) -> None:
            raise StoreUnavailable("away")

    affinity = ResourceAffinity(Away())
    affinity.remember("t", ["resp_1"], Affinity("light", None))
    await affinity.close()
    assert await affinity.find("t", ["file_1", "resp_1"]) == Affinity("light", None)
    assert await affinity.find("t", ["file_1"]) is None
    assert await affinity.find("other", ["resp_1"]) is None


async def test_a_store_that_does_not_answer_delays_no_request_for_long(
    tmp_path: Path, makers: tuple[Maker, Maker]
) -> None:
    async with before(tmp_path, makers, store={"timeout": "50ms"}) as tiers:
        pid = store_pid(tiers.served)
        os.kill(pid, signal.SIGSTOP)
        try:
            made = await tiers.respond(EASY)
            assert (await tiers.send("GET", f"/v1/responses/{made}")).json["by"] == "light"
            assert (await tiers.send("GET", "/v1/responses/resp_nobody_1")).status == 200
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: makers_of(tiers.served)._writer is None)


async def test_a_compressed_body_names_resources_too(tiers: Tiers) -> None:
    tiers.light.made.add("found_light_9")
    await tiers.send("GET", "/v1/files/found_light_9")
    packed = gzip.compress(json.dumps({"input_file_id": "found_light_9"}).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = await tiers.send("POST", "/v1/batches", data=packed, headers=headers)
    assert answer.headers["x-nearhit-backend"] == "light"


async def test_the_store_keeps_the_newest_ids(served: Served) -> None:
    store = RedisAffinity(served.gateway.stores.redis, timeout_s=PATIENT_S, max_ids=3)
    keys = [affinity_key("t", str(i)) for i in range(5)]
    for i, key in enumerate(keys):
        await store.add({key: Affinity("main", None if i % 2 else "http://127.0.0.1:1")})
        if i == 2:
            assert await store.find(keys[:4]) == [
                Affinity("main", "http://127.0.0.1:1"),
                Affinity("main", None),
                Affinity("main", "http://127.0.0.1:1"),
                None,
            ]
    found = await store.find(keys)
    assert (len([each for each in found if each is not None]), found[-1]) == (3, Affinity("main", "http://127.0.0.1:1"))


async def test_a_tenant_s_name_and_an_id_cannot_be_shifted_into_each_other() -> None:
    assert affinity_key("ab", "c") != affinity_key("a", "bc")


async def test_a_model_by_name_is_asked_of_the_backend_of_its_calls(
    tmp_path: Path, makers: tuple[Maker, Maker]
) -> None:
    light, large = makers
    light.models.add("small-1")
    large.models.add("big-1")
    async with before(tmp_path, makers, BY_MODEL) as tiers:
        for name, backend in (("small-1", "light"), ("big-1", "large")):
            answer = await tiers.send("GET", f"/v1/models/{name}")
            assert (answer.status, answer.json["owned_by"]) == (200, backend)


async def test_a_model_that_no_list_has_is_asked_of_each_tier(tmp_path: Path, makers: tuple[Maker, Maker]) -> None:
    makers[1].models.add("alias")
    async with before(tmp_path, makers) as tiers:
        assert (await tiers.send("GET", "/v1/models/alias")).json["owned_by"] == "large"
        assert (await tiers.send("GET", "/v1/models/light-listed")).json["id"] == "light-listed"
        assert (await tiers.send("GET", "/v1/models/nobody-s")).status == 404


async def test_the_official_client_finds_what_it_made(tiers: Tiers) -> None:
    async with openai.AsyncOpenAI(base_url=f"{tiers.served.url}/v1", api_key="k", max_retries=0) as client:
        made = await client.responses.create(model="m", input=EASY, background=True)
        assert (await client.responses.retrieve(made.id)).id == made.id
        await client.responses.cancel(made.id)
        await client.responses.delete(made.id)
    assert [path.split()[0] for path in tiers.light.paths] == ["POST", "GET", "POST", "DELETE"]


async def test_a_request_without_ids_costs_no_look_up(tiers: Tiers) -> None:
    affinity = makers_of(tiers.served)
    for question in (EASY, HARD):
        await tiers.served.chat(question)
    await tiers.send("GET", "/v1/files")
    await asyncio.sleep(0)
    assert len(affinity._known) == 0
