"""An upstream that refuses the gateway's own key, or lacks the model, has failed, and has given no fast answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.config.key_format import digest_of
from gateway.messages import FullBody, Response
from gateway.upstream.backoff import MAX_SCOPE
from gateway.upstream.refusals import REFUSED_S, Refused, refused
from gateway.upstream.upstream import COOLDOWN_S
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.http_clients import CLIENTS
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until
from tests.upstream.test_upstreams import answering, upstreams

__all__ = ["upstreams"]
FALLBACK = NO_CACHE.replace("{backend: main}", "{backend: main, fallback: [other]}")
KEYS = {"KEY_A": "sk-revoked", "KEY_B": "sk-good"}

NO_MODEL: dict[str, tuple[int, str]] = {
    "OpenAI": (404, '{"error": {"message": "The model `m` does not exist or you do not have access to it.", '
               '"type": "invalid_request_error", "param": null, "code": "model_not_found"}}'),
    "OpenAI project": (403, '{"error": {"message": "Project `p` does not have access to model `m`", '
                       '"type": "invalid_request_error", "param": null, "code": "model_not_found"}}'),
    "Anthropic": (404, '{"type": "error", "error": {"type": "not_found_error", "message": "model: m"}}'),
    "Azure": (404, '{"error": {"code": "DeploymentNotFound", "message": "The API deployment does not exist."}}'),
    "Gemini": (404, '[{"error": {"code": 404, "message": "models/m is not found for API version v1main", '
               '"status": "NOT_FOUND"}}]'),
    "vLLM": (404, '{"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError", '
             '"param": null, "code": 404}'),
    "Ollama": (404, '{"error": {"message": "model \\"m\\" not found, try pulling it first", "type": "api_error"}}'),
    "OpenRouter": (400, '{"error": {"message": "m is not a valid model ID", "code": 400}}'),
    "Mistral": (400, '{"object": "error", "message": "Invalid model: m", "type": "invalid_model", "code": "1500"}'),
    "DeepSeek": (400, '{"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}'),
    "a wrong base URL": (404, "404 page not found"),
}  # fmt: skip
NO_KEY: dict[str, tuple[int, str]] = {
    "revoked": (401, '{"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}'),
    "unpaid": (402, '{"error": {"message": "Insufficient credits", "code": 402}}'),
    "no quota": (429, '{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'),
}
FORBIDDEN = {"forbidden": (403, '{"error": {"message": "You have no access", "code": "permission_denied"}}')}
OWN = {
    "a moderated prompt": (403, '{"error": {"message": "Your input was flagged", "code": 403}}'),
    "an earlier response": (404, '{"error": {"message": "Previous response with id \'resp_1\' not found.", '
                            '"param": "previous_response_id", "code": "previous_response_not_found"}}'),
    "a bad field": (400, '{"error": {"message": "Unsupported value: temperature", "code": "unsupported_value"}}'),
    "a large answer": (402, '{"error": {"message": "needs more credits, or fewer max_tokens", "code": 402}}'),
    "a rate": (429, '{"error": {"message": "Rate limit reached for m", "code": "rate_limit_exceeded"}}'),
}  # fmt: skip
ALL = {**NO_MODEL, **NO_KEY, **FORBIDDEN}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def saying(status: int, body: str) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, body=body.encode(), content_type="application/json")

    return answer


def two(upstreams: list[Upstream], client: str = "own", **keys: Any) -> dict[str, Any]:
    listed = [{"url": each.url, "api_key_env": name} for each, name in zip(upstreams[:2], KEYS, strict=True)]
    return {"main": {"adapter": "openai", "upstreams": listed, "client": client, **keys}}


def apart(upstreams: list[Upstream], own: bool = True) -> dict[str, Any]:
    key = {"api_key_env": "KEY_A"} if own else {}
    return {
        "main": {"adapter": "openai", "url": upstreams[0].url, **key},
        "other": {"adapter": "openai", "url": upstreams[1].url, "api_key_env": "KEY_B"},
    }


@pytest.mark.parametrize(("status", "body"), ALL.values(), ids=ALL)
def test_refusals_are_told_in_the_words_of_their_providers(status: int, body: str) -> None:
    what = refused(Response(status, (), FullBody(body.encode())))
    assert what is (Refused.KEY if (status, body) in NO_KEY.values() else Refused.MODEL)


@pytest.mark.parametrize(("status", "body"), OWN.values(), ids=OWN)
def test_what_a_request_does_wrong_is_no_refusal_of_the_gateway(status: int, body: str) -> None:
    assert refused(Response(status, (), FullBody(body.encode()))) is None


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("status", "body"), ALL.values(), ids=ALL)
async def test_an_upstream_that_refuses_the_gateways_key_fails_no_client_and_is_left(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock, status: int, body: str, streamed: bool, client: str
) -> None:
    upstreams[0].answer = saying(status, body)
    async with gateway_of(config_of(tmp_path, two(upstreams, client)), NO_CACHE, KEYS, clock=clock) as served:
        for i in range(30):
            assert (await served.chat(str(i), stream=streamed)).status == 200
        assert len(upstreams[0].calls) <= 1
        upstreams[0].answer = None
        clock.advance(max(COOLDOWN_S, REFUSED_S))
        for i in range(60):
            assert (await served.chat(str(i), stream=streamed)).status == 200
            if len(upstreams[0].calls) > 2:
                return
        raise AssertionError("it is not called again")


@pytest.mark.parametrize(("status", "body"), ALL.values(), ids=ALL)
async def test_a_backend_that_refuses_the_gateways_key_leads_to_the_next_one(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock, status: int, body: str
) -> None:
    upstreams[0].answer = saying(status, body)
    async with gateway_of(config_of(tmp_path, apart(upstreams)), FALLBACK, KEYS, clock=clock) as served:
        for i in range(10):
            answer = await served.chat(str(i))
            assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "other")
        assert len(upstreams[0].calls) == 1
        upstreams[0].answer = None
        clock.advance(max(COOLDOWN_S, REFUSED_S))
        assert (await served.chat("again")).headers["x-nearhit-backend"] == "main"


@pytest.mark.parametrize(("status", "body"), [*NO_KEY.values()][:2] + [*NO_MODEL.values()][:1])
async def test_a_refusal_of_the_clients_key_is_the_clients(
    upstreams: list[Upstream], tmp_path: Path, status: int, body: str
) -> None:
    upstreams[0].answer = saying(status, body)
    async with gateway_of(config_of(tmp_path, apart(upstreams, own=False)), FALLBACK, KEYS) as served:
        for i in range(10):
            assert (await served.chat(str(i), headers={"Authorization": "Bearer mine"})).status == status
        assert upstreams[1].calls == []
        assert await refusals(served) == {}


async def test_what_one_client_is_refused_keeps_no_other_client_away(upstreams: list[Upstream], tmp_path: Path) -> None:
    async def picky(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer bad":
            return await saying(*NO_KEY["revoked"])(request, call)
        return web.json_response({"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}]})

    for each in upstreams:
        each.answer = picky
    config = config_of(tmp_path, {"main": {"adapter": "openai", "upstreams": [each.url for each in upstreams[:2]]}})
    async with gateway_of(config, NO_CACHE) as served:
        for i in range(30):
            assert (await served.chat(str(i), headers={"Authorization": "Bearer bad"})).status == 401
            assert (await served.chat(str(i), headers={"Authorization": "Bearer good"})).status == 200
        assert await states(served) == {"closed"}


async def test_a_model_that_one_upstream_lacks_costs_it_no_call_for_another_model(
    upstreams: list[Upstream], tmp_path: Path
) -> None:
    async def lacking(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call["model"] == "rare":
            return await saying(*NO_MODEL["OpenAI"])(request, call)
        return await upstreams[0]._default(request, await request.read())

    upstreams[0].answer = lacking
    async with gateway_of(config_of(tmp_path, two(upstreams)), NO_CACHE, KEYS) as served:
        for i in range(20):
            assert (await served.chat(str(i), model="rare")).status == 200
            assert (await served.chat(str(i), model="common")).status == 200
        asked = [call.json["model"] for call in upstreams[0].calls]
        assert asked.count("rare") <= 1
        assert await states(served) == {"closed"}, "it is in service for every other model"


async def test_a_model_that_no_upstream_has_is_the_clients_mistake(upstreams: list[Upstream], tmp_path: Path) -> None:
    for each in upstreams:
        each.answer = saying(*NO_MODEL["OpenAI"])
    async with gateway_of(config_of(tmp_path, two(upstreams)), NO_CACHE, KEYS) as served:
        answers = [await served.chat(str(i), model="nonsense") for i in range(5)]
        assert {answer.status for answer in answers} == {404}
        assert sum(len(each.calls) for each in upstreams) <= 6, "two for the first, one for each later one"


async def states(served: Served) -> set[str]:
    async with served.session.get(served.admin_url + "/admin/backends") as response:
        return {u["state"] for b in (await response.json()).values() for u in b["upstreams"]}


async def refusals(served: Served) -> dict[str, dict[str, Any]]:
    """Return the refusals that the admin port shows, by address."""
    async with served.session.get(served.admin_url + "/admin/backends") as response:
        backends = await response.json()
    return {u["address"]: u["refusal"] for b in backends.values() for u in b["upstreams"] if u["refusal"]}


async def test_the_dashboard_and_the_log_tell_of_a_refusal(
    upstreams: list[Upstream], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upstreams[0].answer = saying(*NO_KEY["revoked"])
    async with gateway_of(config_of(tmp_path, two(upstreams)), NO_CACHE, KEYS) as served:
        for i in range(10):
            await served.chat(str(i))
        (told,) = (await refusals(served)).items()
        assert told[0] == upstreams[0].url
        assert (told[1]["refused"], told[1]["status"], told[1]["scope"]) == ("key", 401, "")
    assert "the upstream refuses the gateway's calls" in caplog.text
    assert "sk-revoked" not in caplog.text


async def test_a_hedge_that_is_refused_at_once_does_not_end_the_first_call(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    upstreams[0].answer = saying(*NO_KEY["revoked"])
    config = config_of(tmp_path, two(upstreams, hedge={"after": "p50", "budget": "20%"}))
    async with gateway_of(config, NO_CACHE, KEYS, clock=clock) as served:
        assert {(await served.chat(str(i))).status for i in range(30)} == {200}


async def test_a_path_that_passes_through_goes_on_where_the_gateways_key_is_refused(
    upstreams: list[Upstream], tmp_path: Path
) -> None:
    upstreams[0].answer = saying(*NO_KEY["revoked"])
    async with gateway_of(config_of(tmp_path, two(upstreams)), NO_CACHE, KEYS) as served:
        assert {(await served.get("/v1/files")).status for _ in range(10)} == {200}
        assert len(upstreams[0].calls) <= 1
        assert await states(served) == {"closed"}, "the key may be good for chats"
        assert {(await served.post("/v1/videos", {"prompt": str(i)})).status for i in range(10)} <= {200, 401}
        assert sum(each.path == "/v1/videos" for each in upstreams[0].calls) <= 1
        assert sum(each.path == "/v1/videos" for up in upstreams for each in up.calls) == 10, "each went once"


async def test_a_refusal_that_is_not_read_holds_no_permit(upstreams: list[Upstream], tmp_path: Path) -> None:
    async def endless(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        page = web.StreamResponse(status=401)
        await page.prepare(request)
        while True:
            await page.write(bytes(65536))

    upstreams[0].answer = endless
    async with gateway_of(config_of(tmp_path, two(upstreams, max_concurrency=2)), NO_CACHE, KEYS) as served:
        # Each path is refused by itself.
        assert {(await served.get(f"/v1/files/{i}")).status for i in range(8)} == {200}
        assert upstreams[0].calls
        await until(lambda: served.gateway.parts.pools["main"].inflight == 0)


@pytest.mark.parametrize("name", ["OpenAI-Organization", "OpenAI-Project", "X-Goog-User-Project", "Origin"])
@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_of_a_client_s_own_header_moves_no_other_client(
    upstreams: list[Upstream], tmp_path: Path, name: str, status: int
) -> None:
    async def picky(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if name in request.headers:
            return web.json_response({"error": {"message": "no such account"}}, status=status)
        return web.json_response(completion(call, "a"))

    upstreams[0].answer = picky
    auth = {"mode": "keys", "keys": {each: [digest_of(each)] for each in ("odd", "usual")}}
    async with gateway_of(config_of(tmp_path, apart(upstreams), auth=auth), FALLBACK, KEYS) as served:
        for i in range(8):
            answer = await served.chat(f"odd {i}", headers={"Authorization": "Bearer odd", name: "org-of-nobody"})
            assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "other")
            answer = await served.chat(f"usual {i}", headers={"Authorization": "Bearer usual"})
            assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "main")
        assert await states(served) == {"closed"}


@pytest.mark.parametrize("answer", [NO_MODEL["OpenAI"], (429, '{"error": {"message": "slow down"}}')])
async def test_a_long_model_name_takes_little_memory(
    upstreams: list[Upstream], tmp_path: Path, answer: tuple[int, str]
) -> None:
    async def refusing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=answer[0], body=answer[1].encode(), headers={"Retry-After": "60"})

    upstreams[0].answer = upstreams[1].answer = refusing
    async with gateway_of(config_of(tmp_path, two(upstreams)), NO_CACHE, KEYS) as served:
        for ending in "ab":
            await served.chat("hello", model=100_000 * "m" + ending)
        (first, _), pool = upstreams[:2], served.gateway.parts.pools["main"]
        kept = [(*each.refusals.until, *each.waits.until) for each in pool.endpoints]
        assert max(map(len, kept)) == 2, "two models"
        assert all(len(scope) <= MAX_SCOPE for each in kept for _, scope in each)
        assert len(first.calls) <= 2


def limited(status: int = 429) -> Script:
    return answering(status, {"Retry-After": "60"})


@pytest.mark.parametrize("own", [False, True], ids=["client's key", "own key"])
async def test_a_429_for_one_model_pauses_no_other_model_path_or_client(
    upstreams: list[Upstream], tmp_path: Path, own: bool
) -> None:
    main = upstreams[0]

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.path == "/v1/chat/completions" and call.get("model") == "busy":
            return await limited()(request, call)
        return await main._default(request, await request.read())

    main.answer = answer
    key = {"api_key_env": "KEY_A"} if own else {}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": main.url, **key}})
    mine, other = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer other"}
    async with gateway_of(config, NO_CACHE, KEYS) as served:
        assert [(await served.chat(str(i), model="busy", headers=mine)).status for i in range(3)] == [429] * 3
        assert len(main.chats) == 1
        assert (await served.chat("hi", model="free", headers=mine)).status == 200
        assert (await served.get("/v1/models", mine)).status == 200
        assert (await served.get("/v1/files", mine)).status == 200
        assert (await served.post("/v1/messages/count_tokens", {"model": "busy", "messages": []}, mine)).status == 200
        embeddings = await served.post("/v1/embeddings", {"model": "e", "input": "hi"}, mine)
        assert embeddings.status == 200
        await served.chat("other", model="busy", headers=other)
        assert len(main.chats) == (2 if own else 3), "the gateway's account is everybody's, a client's is its own"


async def test_a_429_on_a_path_pauses_that_path(upstreams: list[Upstream], tmp_path: Path) -> None:
    main = upstreams[0]

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.path == "/v1/files":
            return await limited()(request, call)
        return await main._default(request, await request.read())

    main.answer = answer
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": "openai", "url": main.url}}), NO_CACHE) as served:
        assert [(await served.get("/v1/files")).status for _ in range(3)] == [429] * 3
        assert len(main.calls) == 1
        assert (await served.chat("hi")).status == 200
        assert (await served.get("/v1/batches")).status == 200


@pytest.mark.parametrize("status", [503, 529])
async def test_an_overload_pauses_everything(upstreams: list[Upstream], tmp_path: Path, status: int) -> None:
    main = upstreams[0]
    main.answer = limited(status)
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": "openai", "url": main.url}}), NO_CACHE) as served:
        await served.chat("hi", model="one")
        main.answer = None
        assert (await served.chat("hi", model="two")).status == 429
        assert (await served.get("/v1/files")).status == 429
