"""Several worker processes behind one address: a real supervisor, real workers, a real embedded Valkey."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from bench.process import children_of
from gateway.config import Config
from gateway.errors import StartupError
from gateway.features.workers.command import restart
from gateway.features.workers.supervisor import run_supervisor
from gateway.http_server.listening import DataDirLock
from tests.fixtures.gateways import BOTH_CACHES, config_of
from tests.fixtures.processes import Process, served_by_process, write_config
from tests.fixtures.upstream import Upstream, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALIKE = BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.8")


class Workers(Process):
    """Two of them, beneath their supervisor."""

    home: Path
    upstream: Upstream

    @property
    def data_dir(self) -> Path:
        return self.home / "var"

    @property
    def pids(self) -> list[int]:
        return children_of(self.process.pid, b"gateway")

    @property
    def stores(self) -> list[int]:
        return children_of(self.process.pid, b"valkey-server")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Workers]:
    """One for all tests, which each ask something of their own: its start takes a second or two."""
    home = tmp_path_factory.mktemp("workers")
    server = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_timeout": "5s", "workers": 2}
    async with serving(Upstream()) as upstream:
        config = write_config(
            home,
            {"main": {"adapter": "openai", "url": upstream.url}},
            ALIKE,
            server=server,
            data_dir=str(home / "var"),
            store={"timeout": "10s"},
        )
        async with served_by_process(config) as process:
            workers = Workers(process.process, process.url, process.admin_url, process.session)
            workers.home, workers.upstream = home, upstream
            yield workers


async def asked_anew(served: Process, question: str, cache_control: str = "max-age=3600") -> str:
    """Over a connection of its own: any of the workers answers."""
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    headers = {"cache-control": cache_control}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{served.url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        await answer.read()
        assert answer.status == 200 or (answer.status == 504 and cache_control == "only-if-cached")
        return answer.headers.get("Cache-Status", "")


async def found(question: str, served: Process, how: str, times: int = 8) -> None:
    """Every worker finds it, as far as that many connections come to all of them."""
    async with asyncio.timeout(120):
        while not all([how in await asked_anew(served, question, "only-if-cached") for _ in range(times)]):
            await asyncio.sleep(0.05)


async def test_workers_share_one_store_and_each_finds_what_the_other_has_stored(served: Workers) -> None:
    assert len(served.pids) == 2
    before = len(served.upstream.calls)
    await asked_anew(served, "which trains go to Vienna tomorrow morning")
    await found("Which trains go to Vienna tomorrow morning?", served, "detail=semantic")
    assert len(served.upstream.calls) == before + 1


async def test_the_admin_port_has_the_figures_of_all_workers_together(served: Workers) -> None:
    await asked_anew(served, "who painted the ceiling")
    before = await figures(served)
    for _ in range(20):
        await asked_anew(served, "who painted the ceiling")
    async with asyncio.timeout(120):
        while await figures(served) < before + 20:
            await asyncio.sleep(0.1)


async def figures(served: Workers, name: str = "nearhit_requests_total") -> float:
    """A count of all workers; each tells of its own now and then."""
    async with served.session.get(served.admin_url + "/metrics") as answer:
        return counted(await answer.text(), name)


def counted(metrics: str, name: str) -> float:
    rows = (line for line in metrics.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


async def test_a_worker_that_is_killed_comes_back_and_the_others_serve_meanwhile(served: Workers) -> None:
    await asked_anew(served, "how do I reset the password of my account")
    await found("How do I reset the password of my account?", served, "detail=semantic")
    killed, other = served.pids
    os.kill(killed, signal.SIGKILL)
    await found("How do I reset the password of my account?", served, "detail=semantic", times=12)
    async with asyncio.timeout(120):
        while len(served.pids) < 2 or killed in served.pids:
            await asyncio.sleep(0.05)
    assert other in served.pids


async def test_a_hand_over_loses_no_request_and_leaves_new_workers(served: Workers) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "is anybody there"}]}
    before, stop = served.pids, asyncio.Event()

    async def busy(keep: bool) -> int:
        """Asks all the time, over one connection or over new ones."""
        done = 0
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=not keep)) as session:
            while not stop.is_set():
                async with session.post(f"{served.url}/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200
                    await answer.read()
                done += 1
                await asyncio.sleep(0.005)
        return done

    asking = [asyncio.create_task(busy(keep)) for keep in (True, True, False, False)]
    done = await asyncio.to_thread(restart, served.data_dir)
    async with asyncio.timeout(120):
        while set(before) & set(served.pids):
            await asyncio.sleep(0.05)
    stop.set()
    assert all([await task > 20 for task in asking])
    assert done["failed"] == 0
    assert len(served.pids) == 2


async def test_what_the_admin_port_has_written_down_outlasts_the_worker_that_wrote_it(served: Workers) -> None:
    """Whoever asks: the port, the history and the audit file are those of the first worker."""
    url, old = served.admin_url + "/admin/policy?file=policy.yaml", served.pids
    changed = (served.home / "policies" / "policy.yaml").read_text() + "# told by the port\n"
    async with served.session.post(url, data=changed.encode()) as answer:
        assert answer.status == 200
    before, audited = await history(served), served.data_dir / "workers" / "0" / "audit.jsonl"
    assert [version["via"] for version in before][:1] == ["api"]
    lines = audited.read_text().splitlines()
    assert len(lines) == 1
    assert (await asyncio.to_thread(restart, served.data_dir))["failed"] == 0
    async with asyncio.timeout(120):
        while set(old) & set(served.pids):
            await asyncio.sleep(0.05)
    assert await history(served) == before
    assert audited.read_text().splitlines() == lines


async def history(served: Workers) -> list[dict[str, Any]]:
    async with served.session.get(served.admin_url + "/admin/policy/history") as answer:
        versions: list[dict[str, Any]] = (await answer.json())["versions"]
        return versions


async def test_a_store_that_is_killed_comes_back_for_all_workers_and_what_was_removed_does_not(
    served: Workers,
) -> None:
    await asked_anew(served, "where is the nearest station")
    await asked_anew(served, "what was never true")
    await found("where is the nearest station", served, "; hit")
    await found("what was never true", served, "; hit")
    log = next((served.data_dir / "store" / "appendonlydir").glob("*.incr.aof"))
    before = log.stat().st_size
    purge = {"like": "what was never true", "min_similarity": 0.95}
    async with served.session.post(served.admin_url + "/admin/cache/purge", json=purge) as answer:
        assert (await answer.json())["removed"] == 1
    async with asyncio.timeout(120):  # every worker knows it
        while any([await removed_is_served(served) for _ in range(12)]):
            await asyncio.sleep(0.05)
    (store,) = served.stores
    os.kill(store, signal.SIGKILL)
    os.truncate(log, before)  # the removal is lost with it
    async with asyncio.timeout(120):
        while store in served.stores or await figures(served, "nearhit_store_restarts_total") != 1:
            assert not await removed_is_served(served)
            await asyncio.sleep(0.02)
    await found("where is the nearest station", served, "; hit")
    assert not any([await removed_is_served(served) for _ in range(24)])


async def removed_is_served(served: Workers) -> bool:
    return "; hit" in await asked_anew(served, "what was never true", "only-if-cached")


async def test_a_policy_that_is_wrong_by_now_leaves_the_old_workers(served: Workers) -> None:
    before, policy = served.pids, served.home / "policies" / "policy.yaml"
    policy.write_text("version: 2\n")
    try:
        assert (await asyncio.to_thread(restart, served.data_dir))["failed"] == 2
    finally:
        policy.write_text(ALIKE)
    assert served.pids == before
    await asked_anew(served, "still there")


async def test_a_stop_in_the_middle_of_a_hand_over_is_one_as_any_other(tmp_path: Path) -> None:
    server = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_timeout": "5s", "workers": 2}
    config = write_config(
        tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}}, server=server, data_dir=str(tmp_path)
    )
    async with served_by_process(config) as process:
        workers = Workers(process.process, process.url, process.admin_url, process.session)
        before = workers.pids
        process.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(120):
            while set(workers.pids) <= set(before):
                await asyncio.sleep(0.01)
        process.process.terminate()
        assert await process.process.wait() == 0


async def test_a_stop_that_every_process_is_told_cuts_no_request(tmp_path: Path) -> None:
    """As systemd does unless its unit says otherwise: workers are told by the system, and again by their supervisor."""
    server = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_timeout": "60s", "workers": 2}
    async with serving(Upstream()) as upstream:
        backends = {"main": {"adapter": "openai", "url": upstream.url}}
        config = write_config(tmp_path, backends, server=server, data_dir=str(tmp_path))
        async with served_by_process(config) as process:
            workers = Workers(process.process, process.url, process.admin_url, process.session)
            upstream.gate.clear()
            asking = [asyncio.create_task(asked_anew(process, f"question {i}")) for i in range(8)]
            async with asyncio.timeout(120):
                while len(upstream.calls) < len(asking):
                    await asyncio.sleep(0.01)
            for pid in workers.pids:
                os.kill(pid, signal.SIGTERM)
            await asyncio.sleep(0.2)  # they have heard it by now; nothing depends on it
            process.process.terminate()
            await asyncio.sleep(0.2)  # and again
            upstream.gate.set()
            answers = await asyncio.gather(*asking)
            assert all("fwd=miss" in each for each in answers)
            assert await process.process.wait() == 0


async def test_where_no_supervisor_runs_nothing_is_restarted(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no gateway with workers runs on"):
        restart(tmp_path)
    (tmp_path / "supervisor.json").write_text(json.dumps({"pid": 2**22 + 1, "generation": 1, "failed": 0}))
    with pytest.raises(StartupError, match="no gateway with workers runs on"):
        restart(tmp_path)


def config_for(folder: Path, **server: Any) -> Config:
    backends = {"main": {"adapter": "openai", "url": "http://127.0.0.1:1"}}
    return config_of(folder, backends, server={"workers": 2, **server}, store={"url": "redis://127.0.0.1:1"})


async def test_workers_that_do_not_come_to_listen_end_the_supervisor(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="a worker did not start to listen"):
        async with run_supervisor(config_for(tmp_path), ["--version"], os.environ):
            pass
    DataDirLock(tmp_path).release()  # it has been let go of


async def test_a_port_that_other_workers_have_is_taken(tmp_path: Path) -> None:
    """SO_REUSEPORT alone would have the two share it."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        config = config_for(tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(StartupError, match="the port is taken"):
            async with run_supervisor(config, ["--version"], os.environ):
                pass
