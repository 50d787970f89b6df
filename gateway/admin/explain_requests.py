"""POST /admin/explain: what would become of a request now, with the latencies that are predicted. Nothing is sent, and
the request is neither logged nor kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import orjson
from aiohttp import web

from gateway.admin.explanation import Explanation, explanation_of, request_of
from gateway.admin.responses import json_answer
from gateway.config.policy.model import Policy
from gateway.errors import BadRequest, EmbedderUnavailable
from gateway.parts import Parts
from gateway.pipeline import Deployment, steps_of
from gateway.route_steps import deciding_of
from gateway.steps.parse_and_route import apply_route

PATH = "/admin/explain"


class ExplainRequests:
    """`policy` and `parts` give those in force: a held one would keep a former index from being freed."""

    def __init__(self, policy: Callable[[], Policy], parts: Callable[[], Parts], deployment: Deployment) -> None:
        self._policy = policy
        self._parts = parts
        self._deployment = deployment

    def routes(self) -> list[web.RouteDef]:
        return [web.post(PATH, self.explain)]

    async def explain(self, request: web.Request) -> web.Response:
        try:
            found = await self._explained(orjson.loads(await request.read()))
        except orjson.JSONDecodeError as error:
            return json_answer({"error": f"the body is not valid JSON: {error}"}, 400)
        except web.HTTPRequestEntityTooLarge:
            return json_answer({"error": "the body is larger than 1 MiB: expected a request"}, 400)
        except BadRequest as error:
            return json_answer({"error": error.message}, 400)
        return json_answer(found.as_json())

    async def _explained(self, value: object) -> Explanation:
        parts = self._parts()
        request, call = request_of(value, parts.clock, "the body")
        policy = self._policy()
        route = policy.match(request.path, call.model, request.tenant, request.headers)
        apply_route(request, call, route)
        if call.question is not None:
            with suppress(EmbedderUnavailable):  # a request would go on without, too
                request.embedding = await parts.space.embedder.embed(call.question)
        deciding = deciding_of(route, parts)
        decision = deciding.decide(request)
        steps = steps_of(route, self._deployment)
        return explanation_of(request, call, route, decision, deciding.outlook(request), steps)
