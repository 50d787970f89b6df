"""However a request is spelled, it takes one route, has one client, and counts for one limit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from aiohttp import web
from yarl import URL

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import in_parallel, target
from tests.fixtures.processes import Process
from tests.fixtures.upstream import listening

CHAT, PICTURES = "/v1/chat/completions", "/v1/images/generations"
LIMIT = 10  # calls of a tenant
POLICY = f"""
version: 1
routes:
  - {{name: chats, match: {{path: {CHAT}, model: "gpt-*"}}, cache: {{exact: {{ttl: 1h}}}}, route: {{backend: main}}}}
  - {{name: pictures, match: {{path: {PICTURES}, model: "gpt-*"}}, route: {{backend: main}},
     limits: {{requests: {LIMIT}/day, per: tenant}}}}
  - {{name: default, match: {{}}, route: {{backend: main}}}}
"""
KEYS = (
    "Authorization",
    "X-Api-Key",
    "apikey",
    "X-Litellm-Key",
    "x-portkey-api-key",
    "cf-aig-authorization",
    "X-Auth-Token",
)
COOKIES = ("AWSALB", "__cf_bm", "INGRESSCOOKIE", "session")
AT_ONCE = 16


@dataclass
class Backend:
    """Says which call made an answer, and notes the paths that arrive."""

    paths: set[str] = field(default_factory=set)
    calls: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.paths.add(request.raw_path)
        self.calls += 1
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": f"call {self.calls}"},
            "finish_reason": "stop",
        }
        return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "data": [{"url": "x"}]})


def spelled(path: str, draw: random.Random) -> str:
    """Return another spelling of a path (RFC 3986, section 6.2.2): encoded letters, dot segments, slashes."""
    first, *segments = path[1:].split("/")
    out = ["", first]
    for segment in segments:
        out += draw.choice(([], ["."], ["x", ".."], ["%2e"], [""], ["a", "b", "%2E%2e", ".."]))
        out.append("".join(_encoded(letter, draw) if draw.random() < 0.2 else letter for letter in segment))
    return "/".join(out) + draw.choice(("", "", "/"))


def _encoded(letter: str, draw: random.Random) -> str:
    code = f"%{ord(letter):02x}"
    return code.upper() if draw.random() < 0.5 else code


def headers_of(client: str, draw: random.Random) -> dict[str, str]:
    """Return a client's key in the header that it always uses, with a cookie that changes."""
    name = KEYS[int(client) % len(KEYS)]
    scheme = "Bearer " if name.lower().endswith("authorization") else ""
    return {name: f"{scheme}key-{client}", "Cookie": f"{draw.choice(COOKIES)}={draw.random()}"}


@dataclass
class Attack:
    """Sends requests in random spellings, and keeps the clients of each answer."""

    it: Process
    draw: random.Random
    owners: dict[bytes, set[str]] = field(default_factory=dict)
    routes: set[str] = field(default_factory=set)
    statuses: set[int] = field(default_factory=set)
    pictures: dict[str, int] = field(default_factory=dict)

    async def ask(self, client: str) -> None:
        body = {"model": "gpt-4", "messages": [{"role": "user", "content": f"question {self.draw.randrange(9)}"}]}
        status, route, answer = await self._post(CHAT, client, body)
        self.routes.add(route)
        self.statuses.add(status)
        self.owners.setdefault(answer, set()).add(client)

    async def draw_picture(self, client: str) -> None:
        status, route, _ = await self._post(PICTURES, client, {"model": "gpt-image", "prompt": str(self.draw.random())})
        self.routes.add(route)
        if status == 200:
            self.pictures[client] = self.pictures.get(client, 0) + 1

    async def _post(self, path: str, client: str, body: object) -> tuple[int, str, bytes]:
        url = URL(self.it.url + spelled(path, self.draw), encoded=True)
        async with self.it.session.post(url, json=body, headers=headers_of(client, self.draw)) as answer:
            return answer.status, answer.headers.get("x-nearhit-route", f"status {answer.status}"), await answer.read()


async def attack(quick: bool) -> Finding:
    rounds, clients = (10 if quick else 100), [str(number) for number in range(2 * len(KEYS))]
    backend = Backend()
    async with listening(backend.answer) as url, target(url, POLICY) as it:
        sent = Attack(it, random.Random(18))
        await in_parallel(AT_ONCE, (sent.ask(client) for _ in range(rounds) for client in clients))
        await in_parallel(AT_ONCE, (sent.draw_picture(client) for _ in range(2 * LIMIT) for client in clients))
        crossed = [owners for owners in sent.owners.values() if len(owners) > 1]
        routes, paths = (
            sorted(sent.routes - {"chats", "pictures", "status 429"}),
            sorted(backend.paths - {CHAT, PICTURES, f"{PICTURES}/"}),
        )
    over = {client: made for client, made in sent.pictures.items() if made > LIMIT}
    number = (rounds + 2 * LIMIT) * len(clients)
    return verdict_of(
        f"{number} requests of {len(clients)} clients, {len(crossed)} answers crossed, {len(over)} limits passed",
        {
            f"answers crossed between clients {crossed[:3]}": not crossed,
            f"other routes were taken: {routes}": not routes,
            f"other paths reached the backend: {paths[:3]}": not paths,
            f"statuses were {sorted(sent.statuses)}": sent.statuses == {200},
            f"limits of {LIMIT} were passed: {over}": not over and len(sent.pictures) == len(clients),
        },
    )


PART = Part(
    "spelled requests",
    "however its path, key and cookies are spelled, a request has one route, one client and one limit",
    attack,
)
