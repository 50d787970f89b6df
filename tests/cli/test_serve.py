"""`nearhit serve` as a process: it starts, follows its policies, refuses what it must, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import aiohttp

from bench.process import children
from gateway.private_files import make_private
from tests.fixtures.gateways import BOTH_CACHES, PATIENT_ENVIRON, TIERS
from tests.fixtures.processes import ANNOUNCED, Process, served_by_process, write_config
from tests.fixtures.upstream import Upstream

HASH = {**os.environ, **PATIENT_ENVIRON, "NEARHIT_EMBEDDER__ADAPTER": "hash"}

# What only some configurations need: gRPC and its messages (server.grpc, adapter triton), OpenSSL's bindings
# (jobs.key_env, auth.oidc), the encoding of traces (telemetry.traces), the protocols of tensor servers.
NOT_FOR_ALL = (
    "grpc", "grpc_health.v1", "google.protobuf", "tritonclient", "cryptography.fernet", "jwt",
    "opentelemetry.proto", "sentence_transformers",
    *(f"gateway.features.{name}.dialect" for name in ("kserve", "tfserving", "torchserve")),
)  # fmt: skip


async def start(*arguments: str, cwd: Path, **more: str) -> asyncio.subprocess.Process:
    """`more`: of its environment."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", *arguments),
        cwd=cwd,
        env={**HASH, **more},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    try:
        async with asyncio.timeout(120):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:  # a failed test leaves nothing behind either
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode()


def modes(folder: Path) -> dict[str, int]:
    """Return the mode of each regular file and folder, below and including a folder."""
    found = {path: path.lstat().st_mode for path in (folder, *folder.rglob("*"))}
    return {
        str(path.relative_to(folder)): stat.S_IMODE(mode)
        for path, mode in found.items()
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    }


async def test_the_data_folder_is_for_the_gateways_user_alone(upstream: Upstream, tmp_path: Path) -> None:
    """Also where the files were there before with wider modes, and whatever the umask of the caller is."""
    data, former = tmp_path / "data", os.umask(0o000)
    policy = BOTH_CACHES.replace("route: {backend: main}", "route: {backend: main}\n    record: on")
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, policy, data_dir=str(data))
    try:
        for _ in range(2):
            async with served_by_process(config) as served:
                assert (await served.chat("hi")).status == 200
                assert data.is_dir()
            found = modes(data)
            assert {"lock", "store/appendonlydir", "traffic", "store/valkey.log"} <= found.keys()
            assert {path: mode for path, mode in found.items() if mode not in (0o600, 0o700)} == {}
            for path in (data, *data.rglob("*")):
                path.chmod(0o777 if path.is_dir() else 0o666)
        (data / "notes.txt").write_text("not the gateway's")
        (tmp_path / "outside").write_text("not in the folder")
        (data / "store" / "link").symlink_to(tmp_path / "outside")
        make_private(data)
        assert modes(data)["notes.txt"] == stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o666
        assert modes(data)["store"] == 0o700
    finally:
        os.umask(former)


async def announced(process: asyncio.subprocess.Process, before: list[str] | None = None) -> str:
    """-> its address. `before`: is given the lines that it says before that."""
    assert process.stderr is not None
    async with asyncio.timeout(120):
        while True:
            line = await process.stderr.readline()
            assert line, "ended before it served"
            if before is not None:
                before.append(line.decode())
            if found := ANNOUNCED.search(line):
                return found[1].decode()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_one_endpoint_needs_no_file_at_all(upstream: Upstream, tmp_path: Path) -> None:
    process = await start("--upstream", upstream.url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", cwd=tmp_path)
    url = await announced(process)
    body = {"model": "m", "messages": [{"role": "user", "content": "Who are you?"}]}
    async with aiohttp.ClientSession() as session:
        for expected in ("nearhit; fwd=miss; stored", "nearhit; hit; detail=exact"):
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                assert response.headers["Cache-Status"].startswith(expected)
    store = children(process.pid)
    assert len(store) == 1
    process.send_signal(signal.SIGTERM)
    assert (await ended(process))[0] == 0
    assert not any(map(alive, store))


async def test_a_key_with_a_newline_at_its_end_reaches_the_backend_without_it(
    upstream: Upstream, tmp_path: Path
) -> None:
    backend = {"adapter": "openai", "url": upstream.url, "api_key_env": "OPENAI_API_KEY"}
    config = write_config(tmp_path, {"main": backend})
    lines: list[str] = []
    process = await start("--config", str(config), cwd=tmp_path, OPENAI_API_KEY="sk-1\n")
    url = await announced(process, lines)
    body = {"model": "m", "messages": [{"role": "user", "content": "Who are you?"}]}
    async with aiohttp.ClientSession() as session, session.post(url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200
    process.send_signal(signal.SIGTERM)
    assert (await ended(process))[0] == 0
    assert upstream.calls[-1].headers["Authorization"] == "Bearer sk-1"
    said = "".join(lines)
    assert "the environment variable OPENAI_API_KEY ends with white space" in said
    assert "sk-1" not in said


STOPPED_AT_ONCE = """
import os, signal, sys
from gateway.__main__ import main
from gateway.cli import serve
serve.announce = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(sys.argv[1:]))
"""


async def test_who_is_told_that_it_serves_may_stop_it_at_once(tmp_path: Path) -> None:
    options = ("--upstream", "http://127.0.0.1:9/v1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STOPPED_AT_ONCE, "serve", *options),
        cwd=tmp_path,
        env={**HASH, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert (await ended(process))[0] == 0


async def test_what_a_configuration_does_not_use_is_not_imported(upstream: Upstream, tmp_path: Path) -> None:
    said: list[str] = []
    options = ("--upstream", upstream.url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    process = await start(*options, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    url = await announced(process, said)
    async with aiohttp.ClientSession() as session, session.get(url + "/v1/models") as response:
        assert response.status == 200
    process.send_signal(signal.SIGTERM)
    status, rest = await ended(process)
    assert status == 0
    lines = [*said, *rest.splitlines()]
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert {"aiohttp", "faiss", "gateway.app"} <= imported  # it is looked in the right place
    assert not imported & set(NOT_FOR_ALL)


async def test_two_gateways_do_not_share_a_data_directory(upstream: Upstream, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with served_by_process(config):
        code, said = await ended(await start("--config", str(config), "--log-level", "error", cwd=tmp_path))
    assert code == 1
    way_out = "stop it, or give this one another data_dir"
    assert said == f"nearhit: another gateway uses the data directory {tmp_path / 'var'}: {way_out}\n"


async def test_a_data_directory_that_cannot_be_made_is_one_sentence(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, data_dir="file/var")
    code, said = await ended(await start("--config", str(config), "--log-level", "error", cwd=tmp_path))
    assert code == 1
    assert said == (
        f"nearhit: the data directory {tmp_path / 'file' / 'var'} cannot be written (Not a directory): "
        "expected write access there, or another data_dir\n"
    )


async def test_a_taken_port_is_one_sentence_and_leaves_nothing_running(upstream: Upstream, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await start(
            "--config", str(config), "--listen", f"127.0.0.1:{port}", "--log-level", "error", cwd=tmp_path
        )
        code, said = await ended(process)
    assert code == 1
    assert said == f"nearhit: cannot listen on 127.0.0.1:{port} (server.listen): the port is taken\n"
    assert not (tmp_path / "var" / "store" / "valkey.sock").exists()


async def gauge(served: Process, name: str) -> float:
    async with served.session.get(served.admin_url + "/metrics") as response:
        text = await response.text()
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


async def reloaded(served: Process, to: float) -> None:
    """Waits until the reload has had its outcome: that is what the metric is for."""
    async with asyncio.timeout(120):
        while await gauge(served, "nearhit_policy_last_reload_successful") != to:
            await asyncio.sleep(0.05)


def saved(file: Path, content: str) -> None:
    """Whole or not at all: what is half written has other faults."""
    file.with_suffix(".new").write_text(content)
    file.with_suffix(".new").replace(file)


async def test_a_saved_policy_is_in_force_at_once_and_a_broken_one_never(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """A file that does not load leaves the last good policy in force, and says so."""
    backends = {name: {"adapter": "openai", "url": each.url} for name, each in (("light", light), ("large", large))}
    config = write_config(tmp_path, backends, TIERS)
    policy = tmp_path / "policies" / "policy.yaml"
    async with served_by_process(config) as served:
        assert (await served.chat("What is a scope?")).headers["x-nearhit-backend"] == "light"
        saved(policy, TIERS.replace("escalate_above: 0.5", "escalate_above: often"))
        await reloaded(served, 0.0)
        assert (await served.chat("What is a verdict?")).headers["x-nearhit-backend"] == "light"
        async with served.session.get(served.admin_url + "/admin/policy") as response:
            faults = (await response.json())["faults"]
        assert len(faults) == 1
        assert "policy.yaml:7: routes[0].route.escalate_above" in faults[0]
        saved(policy, TIERS.replace("escalate_above: 0.5", "escalate_above: 0.0"))
        await reloaded(served, 1.0)
        assert (await served.chat("What is a budget?")).headers["x-nearhit-backend"] == "large"
