"""Replay poisoning attacks on a real gateway, with the real models and the shipped policy.

`python -m tests.security.replay` prints the table of docs/security.md.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fixtures.gateways import Served, config_of, gateway_of, recovered
from tests.fixtures.upstream import Upstream, completion, question_of, serving
from tests.fixtures.waiting import until
from tests.security.attacks import KINDS, Attack, attacks, targets

SHIPPED = Path(__file__).parents[2] / "policies" / "default.yaml"
CONFIRM = "semantic: {ttl: 6h"
ATTACKER, VICTIM, STRANGER = "attacker", "victim", "stranger"
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the victims of one kind of attack got: their requests, and the wrong answers among them."""

    kind: str
    asked: int
    wrong: int

    @property
    def share(self) -> float:
        return self.wrong / self.asked


def policy_of(*, confirm: bool) -> str:
    """Return the shipped policy, with a confirmation by a second client if `confirm`."""
    shipped = SHIPPED.read_text("utf-8")
    if not confirm:
        return shipped
    assert shipped.count(CONFIRM) == 1
    return shipped.replace(CONFIRM, f"admit: {{trust: own, confirm: 2}}\n      {CONFIRM}")


async def replay(plan: Sequence[Attack], path: Path, *, victim: str, confirm: bool = False) -> list[Outcome]:
    """Let the attacker ask first and the victims after him, each kind in a tenant of its own.

    `victim`: `VICTIM` is another client of the attacker's tenant, `STRANGER` one of another tenant. No audit is drawn,
    because it could only reveal wrong answers.
    """
    answers = {question: attack.target.wrong for attack in plan for question in attack.planted}
    answers |= {question: attack.target.right for attack in plan for question in attack.victims}

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, answers[question_of(call)]))

    async with serving(Upstream()) as upstream:
        upstream.answer = answer
        backend = {"adapter": "openai", "url": upstream.url}
        config = config_of(
            path, {"light": backend, "large": backend}, auth={"mode": "keys"}, embedder={"adapter": "onnx"}
        )
        async with gateway_of(config, policy_of(confirm=confirm), draw=lambda: 1.0) as served:
            await recovered(served)
            return [await _attack(served, kind, plan, victim) for kind in dict.fromkeys(each.kind for each in plan)]


async def _attack(served: Served, kind: str, plan: Sequence[Attack], victim: str) -> Outcome:
    chosen = [attack for attack in plan if attack.kind == kind]
    tenant = kind.replace(" ", "-")
    attacker = await _key(served, ATTACKER, tenant)
    await _ask(served, [question for attack in chosen for question in attack.planted], attacker)
    await until(lambda: served.gateway.parts.space.comparisons.idle)
    asked = Counter[bool]()
    key = await _key(served, victim, tenant if victim == VICTIM else f"not-{tenant}")
    for attack in chosen:
        for text in await _ask(served, attack.victims, key):
            asked[text == attack.target.wrong] += 1
    return Outcome(kind, asked.total(), asked[True])


async def _ask(served: Served, questions: Sequence[str], headers: dict[str, str]) -> list[str]:
    limiter = asyncio.Semaphore(CONCURRENCY)

    async def ask(question: str) -> str:
        async with limiter:
            answer = await served.chat(question, headers=headers, temperature=0)
            assert answer.status == 200, answer.body
            return answer.text

    return list(await asyncio.gather(*map(ask, questions)))


async def _key(served: Served, name: str, tenant: str) -> dict[str, str]:
    body = {"name": name, "tenant": tenant}
    async with served.session.post(f"{served.admin_url}/admin/keys", json=body) as response:
        assert response.status == 200, await response.text()
        return {"Authorization": f"Bearer {(await response.json())['key']}"}


async def main() -> None:
    plan = attacks(targets())
    columns = {
        "another tenant": {"victim": STRANGER},
        "the same tenant": {"victim": VICTIM},
        "the same tenant, `confirm: 2`": {"victim": VICTIM, "confirm": True},
    }
    found: dict[str, list[Outcome]] = {}
    for name, setting in columns.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = await replay(plan, Path(folder), **setting)  # type: ignore[arg-type]
    print(f"| attack | planted | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for at, kind in enumerate(KINDS):
        planted = sum(len(attack.planted) for attack in plan if attack.kind == kind)
        cells = [
            f"{outcomes[at].wrong} of {outcomes[at].asked} ({outcomes[at].share:.1%})" for outcomes in found.values()
        ]
        print(f"| {kind} | {planted} | {' | '.join(cells)} |")


if __name__ == "__main__":
    asyncio.run(main())
