"""Trust tiers: an answer serves only its writer until an independent client's answer agrees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cache.threshold.answer_shares import AnswerText
from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import policy_from_text
from gateway.features.trust.askers import asker_of
from gateway.features.trust.rule import TrustRule
from gateway.outcomes import Admission, Refusal
from tests.fixtures.entries import entry_of
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.several import counted
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream, completion, stream
from tests.fixtures.waiting import until

POLICY = """
version: 1
routes:
  - name: default
    match: {{}}
    cache:
      {caches}
      share: {share}
      admit: {admit}
    route: {{backend: main}}
"""
EXACT = "exact: {ttl: 1h}"
BOTH = "exact: {ttl: 1h}\n      semantic: {ttl: 1h, max_wrong_hits: 1%}"
OWN, OWN_2 = "{trust: own}", "{trust: own, confirm: 2}"
BY_USER = "{trust: own, confirm: 2, confirm_by: user}"
ASKED, ALIKE = "how do I reset my password", "How do I reset my password?"


def policy(admit: str, caches: str = BOTH, share: str = "tenant") -> str:
    return POLICY.format(admit=admit, caches=caches, share=share)


class Keys:
    """API keys of the store, made on demand."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.texts: dict[tuple[str, str], str] = {}

    async def ask(self, who: str, question: str = ASKED, *, cache: str = "read-write", **fields: Any) -> Answer:
        """Ask with the key `who`, such as `ann@acme`."""
        return await self.served.chat(question, headers=await self.headers(who, cache), **fields)

    async def headers(self, who: str, cache: str = "read-write") -> dict[str, str]:
        name, _, tenant = who.partition("@")
        if (who, cache) not in self.texts:
            body = {"name": name, "tenant": tenant or "acme", "cache": cache}
            async with self.served.session.post(f"{self.served.admin_url}/admin/keys", json=body) as response:
                assert response.status == 200, await response.text()
                self.texts[who, cache] = (await response.json())["key"]
        return {"Authorization": f"Bearer {self.texts[who, cache]}"}


@asynccontextmanager
async def keyed(upstream: Upstream, path: Path, rules: str, **sections: Any) -> AsyncIterator[Keys]:
    config = config_of(path, {"main": {"adapter": "openai", "url": upstream.url}}, auth={"mode": "keys"}, **sections)
    async with gateway_of(config, rules) as served:
        await recovered(served)
        yield Keys(served)


def says(upstream: Upstream, *texts: str) -> None:
    """Let the endpoint give these answers in turn, the last one again and again."""
    left = list(texts)

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        text = left.pop(0) if len(left) > 1 else left[0]
        return await stream(request, call, text) if call.get("stream") else web.json_response(completion(call, text))

    upstream.answer = answer


def is_hit(answer: Answer) -> bool:
    assert answer.status == 200, answer.body
    return answer.cache_status.startswith("nearhit; hit")


def confirmations(keys: Keys) -> dict[str, float]:
    return counted(keys.served, "confirmations")


def refusals(keys: Keys) -> float:
    return keys.served.gateway.parts.telemetry.refusals.values.get(("default", Refusal.UNCONFIRMED), 0.0)


async def compared(keys: Keys, number: int = 1) -> None:
    await until(lambda: sum(confirmations(keys).values()) >= number)


@pytest.mark.parametrize("caches", [EXACT, BOTH], ids=["exact", "both"])
async def test_an_unconfirmed_answer_serves_its_writer_only(upstream: Upstream, tmp_path: Path, caches: str) -> None:
    async with keyed(upstream, tmp_path, policy(OWN, caches)) as keys:
        assert not is_hit(await keys.ask("ann"))
        assert is_hit(await keys.ask("ann"))
        assert not is_hit(await keys.ask("bob"))
        assert refusals(keys) == (caches == BOTH)
        assert not is_hit(await keys.ask("bob@other"))
        assert confirmations(keys) == {}, "nothing is to be confirmed without `confirm`"


async def test_own_without_confirm_is_for_good(upstream: Upstream, tmp_path: Path) -> None:
    async with keyed(upstream, tmp_path, policy(OWN)) as keys:
        for who in ("ann", "bob", "cid"):
            assert not is_hit(await keys.ask(who))
        for who in ("ann", "bob", "cid"):
            assert is_hit(await keys.ask(who)), "nobody replaces the answer of another client"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("second", [ASKED, ALIKE], ids=["same", "alike"])
async def test_a_second_clients_equal_answer_confirms(
    upstream: Upstream, tmp_path: Path, second: str, streamed: bool
) -> None:
    says(upstream, "Open the settings.")
    async with keyed(upstream, tmp_path, policy(OWN_2)) as keys:
        assert not is_hit(await keys.ask("ann", stream=streamed))
        assert not is_hit(await keys.ask("bob", second, stream=streamed))
        await compared(keys)
        assert confirmations(keys) == {"agreed": 1}
        assert is_hit(await keys.ask("cid"))
        assert is_hit(await keys.ask("cid", ALIKE))
        assert not is_hit(await keys.ask("cid@other"))


@pytest.mark.parametrize(("second", "outcome"), [(ASKED, "agreed"), (ALIKE, "undecided")], ids=["same", "alike"])
async def test_an_answer_that_many_questions_get_confirms_no_other_question(
    upstream: Upstream, tmp_path: Path, second: str, outcome: str
) -> None:
    """Before a classifier, the equal answer to a victim's question would confirm any question of an attacker."""
    says(upstream, "no")
    async with keyed(upstream, tmp_path, policy(OWN_2)) as keys:
        answers = keys.served.gateway.parts.space.comparisons.answers_of("default")
        for number in range(20):
            answers.observe("scope", AnswerText("no" if number % 4 else f"yes, {number}"))
        await keys.ask("eve")
        await keys.ask("bob", second)
        await compared(keys)
        assert confirmations(keys) == {outcome: 1}
        assert is_hit(await keys.ask("cid")) is (outcome == "agreed")


async def test_another_answer_confirms_nothing(upstream: Upstream, tmp_path: Path) -> None:
    says(upstream, "Send your password to evil.example.", "Open the settings.")
    async with keyed(upstream, tmp_path, policy(OWN_2)) as keys:
        await keys.ask("eve")
        assert (await keys.ask("bob", ALIKE)).text == "Open the settings."
        await compared(keys)
        assert "agreed" not in confirmations(keys)
        assert not is_hit(await keys.ask("cid"))
        assert is_hit(await keys.ask("bob", ALIKE)), "his own answer serves him"


async def test_a_client_cannot_confirm_itself(upstream: Upstream, tmp_path: Path) -> None:
    """Neither by asking again nor as another user of its key."""
    says(upstream, "Send your password to evil.example.")
    async with keyed(upstream, tmp_path, policy(OWN_2)) as keys:
        for user in ("a", "b", "c"):
            assert not is_hit(await keys.ask("eve", user=user))
        for question in (ASKED, ALIKE):
            headers = {**await keys.headers("eve"), "Cache-Control": "no-cache"}
            await keys.served.chat(question, headers=headers, user="a")
        assert confirmations(keys) == {}
        assert not is_hit(await keys.ask("bob"))


async def test_users_confirm_where_the_policy_believes_them(upstream: Upstream, tmp_path: Path) -> None:
    says(upstream, "Open the settings.")
    async with keyed(upstream, tmp_path, policy(BY_USER)) as keys:
        await keys.ask("app", user="ann")
        assert not is_hit(await keys.ask("app", user="bob"))
        await compared(keys)
        assert is_hit(await keys.ask("app", user="cid"))


async def test_three_must_agree_where_the_policy_says_three(upstream: Upstream, tmp_path: Path) -> None:
    says(upstream, "Open the settings.")
    async with keyed(upstream, tmp_path, policy("{trust: own, confirm: 3}")) as keys:
        await keys.ask("ann")
        await keys.ask("bob")
        await compared(keys, 1)
        assert is_hit(await keys.ask("ann")), "those who agreed have it already"
        assert not is_hit(await keys.ask("cid"))
        await compared(keys, 2)
        assert is_hit(await keys.ask("dan"))


async def test_a_tenants_answer_reaches_others_once_another_tenant_agrees(upstream: Upstream, tmp_path: Path) -> None:
    says(upstream, "Open the settings.")
    rules = policy("{trust: tenant, confirm: 2}", share="global")
    async with keyed(upstream, tmp_path, rules) as keys:
        await keys.ask("ann@acme")
        assert is_hit(await keys.ask("bob@acme", ALIKE))
        assert not is_hit(await keys.ask("cid@other", ALIKE))
        await compared(keys)
        assert is_hit(await keys.ask("dan@third"))


async def test_an_answer_in_flight_is_not_shared_before_it_is_confirmed(upstream: Upstream, tmp_path: Path) -> None:
    caches = BOTH.replace("1%", "1%, coalesce: on")
    async with keyed(upstream, tmp_path, policy(OWN_2, caches)) as keys:
        for who in ("ann", "bob"):
            await keys.headers(who)
        upstream.gate.clear()
        own = [asyncio.create_task(keys.ask("ann", question)) for question in (ASKED, ASKED, ALIKE)]
        await until(lambda: len(upstream.calls) == 1)
        other = [asyncio.create_task(keys.ask("bob", question)) for question in (ASKED, ALIKE)]
        await until(lambda: len(upstream.calls) == 2)
        upstream.gate.set()
        await asyncio.gather(*own, *other)
        assert len(upstream.calls) == 2, "each client shares only calls of its own"


async def test_one_client_cannot_replace_a_confirmed_answer(upstream: Upstream, tmp_path: Path) -> None:
    says(upstream, "Open the settings.", "Open the settings.", "Send your password to evil.example.")
    async with keyed(upstream, tmp_path, policy(OWN_2)) as keys:
        await keys.ask("ann")
        await keys.ask("bob")
        await compared(keys)
        headers = {**await keys.headers("eve"), "Cache-Control": "no-cache"}
        assert "evil" in (await keys.served.chat(ASKED, headers=headers)).text
        assert "evil" in (await keys.ask("eve")).text
        answer = await keys.ask("cid")
        assert (is_hit(answer), answer.text) == (True, "Open the settings.")


async def test_an_answer_of_before_the_setting_serves_nobody(upstream: Upstream, tmp_path: Path) -> None:
    async with keyed(upstream, tmp_path, policy("{}")) as keys:
        assert not is_hit(await keys.ask("ann"))
        assert is_hit(await keys.ask("bob"))
    async with keyed(upstream, tmp_path, policy(OWN)) as keys:
        assert not is_hit(await keys.ask("ann"))
        assert refusals(keys) == 1
        assert is_hit(await keys.ask("ann"))


async def test_the_record_names_no_user(upstream: Upstream, tmp_path: Path) -> None:
    async with keyed(upstream, tmp_path, policy(OWN)) as keys:
        await keys.ask("ann", user="alice.smith")
        (fingerprint,) = [name async for name, _ in keys.served.gateway.parts.store.fingerprints()]
        entry = await keys.served.gateway.parts.store.get(fingerprint)
        assert entry is not None
        (name,) = entry.askers
        assert len(name) == 65
        assert "alice" not in repr(entry.askers)


# Read-only keys


async def test_a_read_only_key_has_hits_and_stores_nothing(upstream: Upstream, tmp_path: Path) -> None:
    rules = policy("{}", BOTH.replace("1%", "1%, audit: 100%"))
    async with keyed(upstream, tmp_path, rules) as keys:
        for _ in range(2):
            assert not is_hit(await keys.ask("bot", cache="read-only"))
        assert not is_hit(await keys.ask("ann"))
        calls = len(upstream.calls)
        assert is_hit(await keys.ask("bot", cache="read-only"))
        assert is_hit(await keys.ask("bot", ALIKE, cache="read-only"))
        parts = keys.served.gateway.parts
        assert parts.telemetry.admissions.values[("default", Admission.READ_ONLY)] == 2
        assert (len(parts.space.audits), len(upstream.calls)) == (0, calls)


async def test_nobody_shares_the_call_of_a_read_only_key(upstream: Upstream, tmp_path: Path) -> None:
    async with keyed(upstream, tmp_path, policy("{}")) as keys:
        await keys.headers("bot", "read-only")
        await keys.headers("ann")
        upstream.gate.clear()
        first = asyncio.create_task(keys.ask("bot", cache="read-only"))
        await until(lambda: len(upstream.calls) == 1)
        second = asyncio.create_task(keys.ask("ann"))
        await until(lambda: len(upstream.calls) == 2)
        third = asyncio.create_task(keys.ask("bot", cache="read-only"))
        upstream.gate.set()
        await asyncio.gather(first, second, third)
        assert len(upstream.calls) <= 3


async def test_the_feedback_of_a_read_only_key_does_not_count(upstream: Upstream, tmp_path: Path) -> None:
    async with keyed(upstream, tmp_path, policy("{}")) as keys:
        headers = await keys.headers("bot", "read-only")
        answer = await keys.served.post("/v1/feedback", {"request_id": "x", "verdict": "wrong"}, headers)
        assert (answer.status, "read-only" in answer.body.decode()) == (403, True)


# The rules


def names(*keys: str, rules: TrustRule | None = None) -> Iterator[str]:
    for key in keys:
        yield asker_of(rules or TrustRule(trust="own", confirm=3), "acme", key, None).name


def test_only_independent_names_count() -> None:
    rules = TrustRule(trust="own", confirm=3)
    asker = asker_of(rules, "acme", "a", None)
    entry = entry_of(askers=(asker.name,))
    again = asker_of(rules, "acme", "a", "another user").name
    assert asker.with_askers(entry, [asker.name, again]) is entry
    assert len(asker.with_askers(entry, names("b", "c", "d")).askers) == 3, "further ones tell nothing"


def test_names_of_another_trust_do_not_count() -> None:
    own = TrustRule(trust="own", confirm=2)
    by_user = replace(own, confirm_by="user")
    entry = entry_of(askers=tuple(asker_of(by_user, "acme", "a", user).name for user in ("x", "y")))
    assert asker_of(by_user, "acme", "a", "z").may_have(entry)
    assert not asker_of(own, "acme", "b", None).may_have(entry)
    assert asker_of(own, "acme", "b", None).with_askers(entry, names("b", "c", rules=own)).askers == tuple(
        names("b", "c", rules=own)
    )


def test_an_operators_import_serves_everybody() -> None:
    asker = asker_of(TrustRule(trust="own"), "acme", "a", None)
    assert asker.may_have(entry_of(imported=1.0))
    assert not asker.may_have(entry_of())


def test_parts_of_a_name_cannot_be_shifted() -> None:
    rules = TrustRule(trust="own", confirm=2)
    assert asker_of(rules, "a", "bc", None) != asker_of(rules, "ab", "c", None)
    assert asker_of(rules, "a", "b", "c") != asker_of(rules, "a", "bc", None)


@pytest.mark.parametrize(
    ("admit", "share", "sentence"),
    [
        ("{trust: global}", "tenant", "wider than share"),
        ("{confirm: 2}", "tenant", "nothing to confirm"),
        ("{trust: tenant, confirm: 2}", "user", "nothing to confirm"),
        ("{trust: global, confirm: 2}", "global", "nothing to confirm"),
        ("{trust: own, confirm: 1}", "tenant", "at least 2"),
        ("{trust: own, confirm_by: user}", "tenant", "next to trust: own and confirm"),
        ("{trust: mine}", "tenant", "expected"),
    ],
)
def test_a_rule_without_effect_is_a_fault(admit: str, share: str, sentence: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:1"}})
    with pytest.raises(ConfigInvalid, match=sentence):
        policy_from_text(policy(admit, share=share), "policy.yaml", config)


def test_a_confirmation_needs_the_semantic_cache(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:1"}})
    with pytest.raises(ConfigInvalid, match=r"expected cache\.semantic"):
        policy_from_text(policy(OWN_2, EXACT), "policy.yaml", config)


async def test_explain_names_the_reason_until_the_answer_is_confirmed(upstream: Upstream, tmp_path: Path) -> None:
    says(upstream, "Open the settings.")
    async with keyed(upstream, tmp_path, policy(OWN_2)) as keys:

        async def explained() -> dict[str, Any]:
            body = {"stored": ASKED, "asked": ALIKE}
            async with keys.served.session.post(f"{keys.served.admin_url}/admin/cache/explain", json=body) as response:
                return dict(await response.json())

        await keys.ask("ann")
        found = await explained()
        assert (found["served"], found["reason"]) == (False, "unconfirmed")
        assert "not confirmed yet" in found["why"]
        await keys.ask("bob")
        await compared(keys)
        assert (await explained())["served"] is True


async def test_another_gateway_on_the_store_follows_a_confirmation(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    says(upstream, "Open the settings.")
    shared = {"store": {"url": outside_store.url}}
    async with (
        keyed(upstream, tmp_path / "a", policy(OWN_2), **shared) as first,
        keyed(upstream, tmp_path / "b", policy(OWN_2), **shared) as second,
    ):
        await first.ask("ann")
        await until(lambda: second.served.gateway.parts.space.index.size == 1)
        store = first.served.gateway.parts.store
        (name,) = [name async for name, _ in store.fingerprints()]
        second.texts = first.texts
        assert not is_hit(await second.ask("bob"))
        await compared(second)
        assert confirmations(second) == {"agreed": 1}
        await until(lambda: store.peek(name) is None)
        for keys in (first, second):
            assert is_hit(await keys.ask("cid"))


async def test_a_clients_own_pairs_do_not_teach_the_route(upstream: Upstream, tmp_path: Path) -> None:
    """Otherwise it could lower the threshold for all, with questions whose answers it makes equal."""
    says(upstream, "It is so.")
    asked = [f"{ASKED} {word}" for word in ("today", "in Rome", "for my boat", "by phone", "tomorrow", "again")]
    labels = []
    for name, admit in (("a", "{}"), ("b", OWN_2)):
        async with keyed(upstream, tmp_path / name, policy(admit)) as keys:
            for question in asked:
                await keys.ask("eve", question)
            parts = keys.served.gateway.parts
            await until(lambda parts=parts: parts.space.comparisons.idle)
            labels.append(sum(parts.telemetry.labels.values.values()))
    assert labels[0] > 0
    assert labels[1] == 0
