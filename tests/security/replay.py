"""Replay poisoning attacks on a real gateway, with the real models and the shipped policy.

`python -m tests.security.replay` prints the tables of docs/security.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fixtures.gateways import Served, config_of, gateway_of, recovered
from tests.fixtures.upstream import Upstream, completion, question_of, serving
from tests.fixtures.waiting import until
from tests.security.attacks import Attack, attacks, targets

SHIPPED = Path(__file__).parents[2] / "policies" / "default.yaml"
SEMANTIC, AUDIT = "semantic: {ttl: 6h", "audit: 2%}"  # parts of the shipped policy
POLICIES = {
    "shipped": [],
    "learn: off": [(AUDIT, "audit: 2%, learn: off}")],
    "confirm: 2": [(SEMANTIC, f"admit: {{trust: own, confirm: 2}}\n      {SEMANTIC}")],
}
CONCURRENCY = 8
LONGEST_S = 1800.0  # until the answers of an attack are compared, on a busy machine


@dataclass(frozen=True, slots=True)
class Outcome:
    """The requests of the victims of one kind of attack, and the wrong answers among them.

    `within` counts those to clients of the attacker's tenant, `across` those to another tenant.
    """

    kind: str
    asked: int
    within: int
    across: int

    @property
    def share(self) -> float:
        """The share of wrong answers within the tenant, in [0, 1]."""
        return self.within / self.asked


def policy_of(name: str) -> str:
    """Return a policy of `POLICIES`: the shipped one with its changes."""
    text = SHIPPED.read_text("utf-8")
    for old, new in POLICIES[name]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


async def replay(plan: Sequence[Attack], path: Path, policy: str) -> list[Outcome]:
    """Let the attacker ask first and the victims after him, each kind of attack in a tenant of its own.

    No audit is drawn, because it could only reveal wrong answers.
    """
    answers = {question: attack.target.wrong for attack in plan for question in attack.planted}
    answers |= {question: attack.target.right for attack in plan for question in attack.victims}

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, answers[question_of(call)]))

    async with serving(Upstream()) as upstream:
        upstream.answer = answer
        backend = {"adapter": "openai", "url": upstream.url}
        backends = {"light": backend, "large": backend}
        config = config_of(path, backends, auth={"mode": "keys"}, embedder={"adapter": "onnx"})
        async with gateway_of(config, policy_of(policy), draw=lambda: 1.0) as served:
            await recovered(served)
            return [await _attack(served, kind, plan) for kind in dict.fromkeys(each.kind for each in plan)]


async def _attack(served: Served, kind: str, plan: Sequence[Attack]) -> Outcome:
    chosen, tenant = [attack for attack in plan if attack.kind == kind], kind.replace(" ", "-")
    attacker = await _key(served, "attacker", tenant)
    await _ask(served, [question for attack in chosen for question in attack.planted], attacker)
    await until(lambda: served.gateway.parts.space.comparisons.idle, LONGEST_S)
    pairs = [(question, attack.target.wrong) for attack in chosen for question in attack.victims]
    wrong = []
    for name, party in (("stranger", f"not-{tenant}"), ("victim", tenant)):
        texts = await _ask(served, [question for question, _ in pairs], await _key(served, name, party))
        wrong.append(sum(text == answer for text, (_, answer) in zip(texts, pairs, strict=True)))
    return Outcome(kind, len(pairs), within=wrong[1], across=wrong[0])


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


async def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.security.replay", description=__doc__)
    parser.add_argument("--policy", choices=POLICIES, nargs="+", default=list(POLICIES))
    parser.add_argument("--targets", type=int, help="questions to attack; default: all")
    given = parser.parse_args(arguments)
    plan = attacks(targets()[: given.targets])
    for name in given.policy:
        print(f"| {name} | planted | another tenant | the same tenant |\n|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder:
            for outcome in await replay(plan, Path(folder), name):
                planted = sum(len(attack.planted) for attack in plan if attack.kind == outcome.kind)
                across, within = f"{outcome.across} of {outcome.asked}", f"{outcome.within} of {outcome.asked}"
                print(f"| {outcome.kind} | {planted} | {across} | {within} ({outcome.share:.1%}) |")
        print()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
