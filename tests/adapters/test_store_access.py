"""A store that takes the gateway's certificate, user and password, and nobody else's: real servers."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.redis import client, durability, purge
from gateway.adapters.redis.client import StoreAccess, connect
from gateway.adapters.redis.purge import RedisPurges
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.cache.stores import access_of
from gateway.cli.doctor import store as doctor_store
from gateway.cli.doctor.store import store as look_at
from gateway.config.store import StoreConfig
from gateway.config.store_url import StoreKind, StoreTarget, parse_store_url
from gateway.errors import StartupError
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.store_fleets import ENVIRON, PATIENCE_S, SECRET, SentinelFleet, sentinel_fleet
from tests.fixtures.stores import outside_server
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentinels, and the servers that are looked at, have as long as a busy machine needs."""
    monkeypatch.setattr(client, "SENTINEL_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(doctor_store, "TIMEOUT_S", PATIENCE_S)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelFleet]:
    with sentinel_fleet(tmp_path_factory.mktemp("sentinel"), sentinels=1) as started:
        yield started


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("embedded", StoreTarget(StoreKind.EMBEDDED)),
        (
            "redis+sentinel://a,b:7/m",
            StoreTarget(StoreKind.SENTINEL, "redis+sentinel", (("a", 26379), ("b", 7)), service="m"),
        ),
        (
            "redis+sentinel://u:p%40@[::1]:5/m/3",
            StoreTarget(StoreKind.SENTINEL, "redis+sentinel", (("::1", 5),), "u", "p@", "m", 3),
        ),
        ("rediss://:p@h/2?x=1", StoreTarget(StoreKind.SERVER, "rediss", (("h", 6379),), None, "p")),
    ],
)
def test_a_url_says_where_the_store_is_and_who_asks(url: str, expected: StoreTarget) -> None:
    assert parse_store_url(url) == expected
    assert "p@" not in expected.where


@pytest.mark.parametrize(
    "url", ["redis://a,b", "redis://a:0", "redis+sentinel://a", "redis+sentinel://a/m?x=1", "redis+sentinel://,/m", "x"]
)
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_store_url(url)


def document(upstream: Upstream, path: Path, store: dict[str, Any]) -> Any:
    return config_of(path, {"main": {"adapter": "openai", "url": upstream.url}}, store={**store, "timeout": "10s"})


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("through", ["sentinel", "direct"])
async def test_a_gateway_shows_its_certificate_and_its_password_and_needs_no_further_rights(
    fleet: SentinelFleet, upstream: Upstream, tmp_path: Path, through: str
) -> None:
    config = document(upstream, tmp_path, fleet.section if through == "sentinel" else fleet.direct)
    async with gateway_of(config, environ=ENVIRON) as served:
        await served.chat(through)
        assert (await served.chat(through)).cache_status.startswith("nearhit; hit")
        assert served.gateway.parts.telemetry.store_errors.total() == 0
    (said, *_) = await look_at(config, ENVIRON, gateway_runs=False)
    assert said.level.name == "OK", said.found
    assert SECRET not in said.found


# asyncio leaves what a handshake that fails has opened to the collector (Python 3.11), whenever that comes.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tls": {}}, "no sentinel answers: [SSL: CERTIFICATE_VERIFY_FAILED]"),
        (
            {"sentinel_password_env": "STORE_PASSWORD"},
            "no sentinel answers: it rejects the user or the password",
        ),
        ({"url": "redis+sentinel://{sentinel}/other"}, "no sentinel knows this primary"),
        ({"username": "somebody"}, "it rejects the user or the password"),
        ({"url": "redis+sentinel://127.0.0.1:9/mymaster"}, "no sentinel answers: Connect"),
    ],
)
async def test_the_doctor_says_what_keeps_it_out(
    fleet: SentinelFleet, upstream: Upstream, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    store = {**fleet.section, **change}
    store["url"] = store["url"].replace("{sentinel}", f"127.0.0.1:{fleet.sentinels[0].port}")
    config = document(upstream, tmp_path, store)
    (found,) = await look_at(config, ENVIRON, gateway_runs=False)
    assert said in found.found
    assert SECRET not in found.found
    gc.collect()  # here, where it is expected, and not in the test that comes next


def test_a_gateway_does_not_start_with_files_that_are_no_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    section = StoreConfig.model_validate({"url": "rediss://h", "tls": {"ca": str(tmp_path / "ca.crt")}})
    with pytest.raises(StartupError, match=r"store\.tls: the files cannot be used"):
        access_of(section, {})
    with pytest.raises(StartupError, match="environment variable MISSING"):
        access_of(StoreConfig.model_validate({"url": "redis://h", "password_env": "MISSING"}), {})


async def test_who_may_wait_for_a_reply_may_wait_for_the_connection(upstream: Upstream, tmp_path: Path) -> None:
    """Where the store stood still for longer than a second while its first connection was opened, the answer was not
    stored, however long `store.timeout` was."""
    for seconds, expected in (("100ms", 1.0), ("10s", 10.0)):
        backends = {"main": {"adapter": "openai", "url": upstream.url}}
        async with gateway_of(config_of(tmp_path, backends, store={"timeout": seconds})) as served:
            client: Any = served.gateway.stores.redis._client
            assert client.connection_pool.connection_kwargs["socket_connect_timeout"] == expected


async def test_a_removal_is_durable_where_every_replica_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that do not answer are waited for, and then it is not said."""
    monkeypatch.setattr(purge, "TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(durability, "DISK_MS", int(PATIENCE_S * 1000))  # a busy disk is not what is looked at
    (tmp_path / "replica").mkdir()
    with outside_server(tmp_path, arguments=("--appendonly", "yes", "--repl-diskless-sync-delay", "0")) as primary:
        port = primary.client.connection_pool.connection_kwargs["port"]
        follow = ("--replicaof", "127.0.0.1", str(port), "--masterauth", "s3cret")
        with outside_server(tmp_path / "replica", arguments=follow) as replica:
            await until(lambda: primary.client.info("replication").get("slave0", {}).get("state") == "online")
            url = f"redis://127.0.0.1:{port}"
            client = connect(url, PATIENCE_S, access=StoreAccess(password="s3cret"))
            store = RedisStore(client, embedder="e1", timeout_s=5.0, clock=SystemClock())
            removals = RedisPurges(store)
            with monkeypatch.context() as patient:
                patient.setattr(durability, "REPLICAS_MS", int(PATIENCE_S * 1000))
                assert await removals.write_bans({"a": b"1"}, []) is True
            assert replica.client.hgetall("nearhit:1:bans") == {b"a": b"1"}
            replica.freeze()
            assert await removals.write_bans({"b": b"2"}, []) is False
            await store.close()


# asyncio leaves the transport of a handshake that is cut off to the collector (Python 3.11), whenever that comes.
@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
async def test_a_sentinel_that_is_cut_off_does_not_keep_the_gateway_from_the_others(
    upstream: Upstream, tmp_path: Path
) -> None:
    with sentinel_fleet(tmp_path, sentinels=3) as fleet:
        fleet.sentinels[0].process.send_signal(signal.SIGSTOP)
        config = config_of(
            tmp_path,
            {"main": {"adapter": "openai", "url": upstream.url}},
            store={**fleet.section, "timeout": "500ms", "front_size": "1kB"},
        )
        async with gateway_of(config, environ=ENVIRON) as served, asyncio.timeout(PATIENCE_S):
            while not (await served.chat("hi")).cache_status.startswith("nearhit; hit"):
                pass
    gc.collect()  # here, where it is expected, and not in the test that comes next
