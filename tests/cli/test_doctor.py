"""`nearhit doctor` as an operator meets it: on a good set-up, and on each thing that can be wrong with one."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.__main__ import main
from gateway.adapters.onnx.model_files import MODEL, default_model_dir
from gateway.cli.doctor import command, network, store
from gateway.features.gpu_index import partition as gpu_partition
from tests.fixtures.gateways import BOTH_CACHES
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.stores import OutsideServer, self_signed
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream

Findings = dict[str, list[dict[str, str]]]


class Home:
    """A folder with a configuration; `examine` runs the command in a thread, beside the test's own servers."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, url: str, policy: str = BOTH_CACHES, backend: dict[str, Any] | None = None, **more: Any) -> Path:
        ports = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
        sections = {"embedder": {"adapter": "onnx"}, "server": ports, **more}
        main_backend = {"adapter": "openai", "url": url, **(backend or {})}
        return write_config(self.folder, {"main": main_backend}, policy, **sections)

    async def examine(self, *more: str) -> tuple[int, Findings, str]:
        """-> exit code, findings by check, everything that was printed."""
        given = ["doctor", "--json", "--config", str(self.folder / "config.yaml"), *more]
        code = await asyncio.to_thread(main, given)
        said = self._capsys.readouterr()
        found: Findings = {}
        for finding in json.loads(said.out)["findings"]:
            found.setdefault(finding["check"], []).append(finding)
        return code, found, said.out + said.err

    async def text(self) -> str:
        await asyncio.to_thread(main, ["doctor", "--config", str(self.folder / "config.yaml")])
        return self._capsys.readouterr().out


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, capsys)


def worst(findings: list[dict[str, str]]) -> dict[str, str]:
    return max(findings, key=lambda finding: ("ok", "warning", "fault").index(finding["level"]))


@pytest.fixture(autouse=True)
def _what_answers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    for module in (network, store):
        monkeypatch.setattr(module, "TIMEOUT_S", 60.0)
    monkeypatch.setattr(store, "START_TIMEOUT_S", 60.0)
    monkeypatch.setattr(command, "CHECK_TIMEOUT_S", 300.0)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port at which something listens that is no nearhit, and says nothing: it is waited for in vain."""
    monkeypatch.setattr(network, "TIMEOUT_S", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_a_good_set_up_has_no_fault_and_leaves_nothing_behind(home: Home, upstream: Upstream) -> None:
    home.write(upstream.url)
    code, found, _ = await home.examine()
    assert code == 0
    checks = ("configuration", "secrets", "embedding", "data_dir", "store", "ports", "backends", "limits", "clock")
    assert {name: worst(found[name])["level"] for name in checks} == dict.fromkeys(checks, "ok")
    assert not (home.folder / "var").exists()


async def test_text_names_each_check_and_what_to_do(home: Home) -> None:
    home.write(f"http://127.0.0.1:{free_ports(1)[0]}/v1")
    text = await home.text()
    assert "ok       configuration  2 files, no faults\n" in text
    assert (
        "\n                        -> start it, or correct backends.main in config.yaml, or the URL of --upstream\n"
        in text
    )
    assert text.splitlines()[-1].endswith("1 fault")


async def test_without_a_configuration_it_says_what_was_left_out(home: Home) -> None:
    text = await home.text()
    assert "does not exist" in text
    assert "not checked, since there is no configuration: secrets, embedding" in text


async def test_a_fault_of_the_policy_is_named_with_its_line(home: Home, upstream: Upstream) -> None:
    home.write(upstream.url, BOTH_CACHES.replace("semantic:", "semantc:"))
    code, found, _ = await home.examine()
    assert code == 1
    assert (
        f"{home.folder / 'policies' / 'policy.yaml'}:6: routes[0].cache.semantc"
        in worst(found["configuration"])["found"]
    )
    assert worst(found["backends"])["level"] == "ok"


async def test_a_missing_secret_is_named_and_everything_else_is_looked_at(
    home: Home, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCTOR_KEY", raising=False)
    home.write(upstream.url, backend={"api_key_env": "DOCTOR_KEY"})
    code, found, _ = await home.examine()
    assert code == 1
    assert worst(found["secrets"])["found"] == (
        "backends.main.api_key_env names the environment variable DOCTOR_KEY, which is not set"
    )
    assert (worst(found["configuration"])["level"], worst(found["backends"])["level"]) == ("ok", "ok")


async def test_a_secret_that_no_header_can_carry_is_named_and_not_shown(
    home: Home, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCTOR_KEY", "sk-very\nsecret")
    home.write(upstream.url, backend={"api_key_env": "DOCTOR_KEY"})
    code, found, said = await home.examine()
    assert code == 1
    assert worst(found["secrets"])["found"].endswith("variable DOCTOR_KEY, which has a control character")
    assert worst(found["backends"])["level"] == "ok"
    monkeypatch.setenv("DOCTOR_KEY", "sk-very-secret\n")
    code, found, more = await home.examine()
    assert code == 0
    assert "DOCTOR_KEY ends with white space" in worst(found["configuration"])["found"]
    assert "sk-very" not in said + more


async def test_no_secret_is_printed_or_sent(home: Home, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCTOR_KEY", "sk-very-secret")
    url = f"redis://user:store-secret@127.0.0.1:{free_ports(1)[0]}/0"
    home.write(upstream.url, backend={"api_key_env": "DOCTOR_KEY"}, store={"url": url})
    _, found, said = await home.examine()
    assert worst(found["secrets"])["found"] == "set: DOCTOR_KEY"
    assert "very-secret" not in said and "store-secret" not in said
    assert not any("very-secret" in str(call.headers) for call in upstream.calls)


async def test_a_store_that_is_down_is_a_fault(home: Home, upstream: Upstream) -> None:
    home.write(upstream.url, store={"url": f"redis://127.0.0.1:{free_ports(1)[0]}/0"})
    code, found, _ = await home.examine()
    assert code == 1
    assert "does not answer" in worst(found["store"])["found"]
    assert worst(found["store"])["todo"].startswith("start it, or correct store.url")


async def test_a_store_tells_of_its_version_and_that_it_keeps_nothing(
    home: Home, upstream: Upstream, outside_store: OutsideServer
) -> None:
    home.write(upstream.url, store={"url": outside_store.url, "timeout": "10s"})
    code, found, said = await home.examine()
    assert (code, worst(found["store"])["level"]) == (0, "warning")
    assert found["store"][0]["found"].startswith("Valkey ")
    assert "it writes nothing to disk" in worst(found["store"])["found"]
    assert "s3cret" not in said


async def test_a_wrong_password_of_the_store_is_told_from_a_server_that_is_down(
    home: Home, upstream: Upstream, outside_store: OutsideServer
) -> None:
    home.write(upstream.url, store={"url": outside_store.url.replace("s3cret", "wr0ng")})
    code, found, said = await home.examine()
    assert code == 1
    assert worst(found["store"])["found"].endswith("it rejects the user or the password")
    assert "wr0ng" not in said


async def test_a_user_that_may_not_ask_for_settings_is_no_store_that_is_down(
    home: Home, upstream: Upstream, outside_store: OutsideServer
) -> None:
    outside_store.client.acl_setuser(
        "doctor", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-info", "-config"]
    )
    try:
        home.write(upstream.url, store={"url": outside_store.url.replace(":s3cret@", "doctor:pw@")})
        code, found, _ = await home.examine()
    finally:
        outside_store.client.acl_deluser("doctor")
    assert (code, worst(found["store"])["level"]) == (0, "warning")
    assert "its user may not run INFO" in worst(found["store"])["found"]


@pytest.mark.parametrize("wrong", ["absent", "damaged"])
async def test_a_wrong_embedding_model_is_a_fault(home: Home, upstream: Upstream, tmp_path: Path, wrong: str) -> None:
    folder = tmp_path / "models"
    if wrong == "damaged":
        shutil.copytree(default_model_dir() / MODEL, folder / MODEL)
        with (folder / MODEL / "model.onnx").open("ab") as file:
            file.write(b"0")
    home.write(upstream.url, embedder={"adapter": "onnx", "model_dir": str(folder)})
    code, found, _ = await home.examine()
    assert code == 1
    assert "nearhit model fetch" in worst(found["embedding"])["todo"]
    assert ("is not the file that was built" in worst(found["embedding"])["found"]) == (wrong == "damaged")


async def test_another_model_than_the_one_that_is_named_is_a_fault(
    home: Home, upstream: Upstream, tmp_path: Path
) -> None:
    shutil.copytree(default_model_dir() / MODEL, tmp_path / "models" / "another")
    home.write(upstream.url, embedder={"model": "another", "model_dir": str(tmp_path / "models")})
    code, found, _ = await home.examine()
    assert code == 1
    assert worst(found["embedding"])["found"].endswith(f"contains {MODEL}, but another is configured")


async def test_a_gpu_that_faiss_cannot_use_is_a_fault_and_one_that_it_can_is_named(
    home: Home, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.write(upstream.url, index={"device": "cuda:31"})
    code, found, _ = await home.examine()
    (finding,) = found["index"]
    assert (code, finding["level"]) == (1, "fault")
    assert finding["found"].startswith("index.device cuda:31: ")
    monkeypatch.setattr(gpu_partition, "CudaDevice", str)
    _, found, _ = await home.examine()
    assert found["index"][0]["found"] == "faiss finds cuda:31, for partitions of 100,000 entries and more"


async def test_a_port_that_another_program_has_is_a_fault(home: Home, upstream: Upstream, taken: int) -> None:
    ports = {"listen": f"127.0.0.1:{taken}", "admin": "127.0.0.1:0"}
    home.write(upstream.url, server=ports)
    code, found, _ = await home.examine()
    assert code == 1
    assert worst(found["ports"])["found"].endswith("(server.listen): in use by another program than nearhit")


async def test_a_backend_that_refuses_is_a_fault(home: Home) -> None:
    home.write(f"http://127.0.0.1:{free_ports(1)[0]}/v1")
    code, found, _ = await home.examine()
    assert code == 1
    assert worst(found["backends"])["found"].endswith("refuses connections: nothing listens there")


async def test_one_upstream_of_two_that_refuses_is_a_warning(home: Home, upstream: Upstream) -> None:
    home.write(upstream.url)
    dead = f"http://127.0.0.1:{free_ports(1)[0]}/v1"
    config = json.loads((home.folder / "config.yaml").read_text())
    config["backends"]["main"] = {"adapter": "openai", "upstreams": [upstream.url, dead]}
    (home.folder / "config.yaml").write_text(json.dumps(config))
    code, found, _ = await home.examine()
    assert (code, worst(found["backends"])["level"]) == (0, "warning")


@pytest.mark.parametrize("status", [200, 401])
async def test_a_base_url_without_its_version_is_a_warning_with_the_one_that_is_meant(
    home: Home, upstream: Upstream, status: int
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({}, status=status if request.path == "/v1/models" else 404)

    upstream.answer = answer
    root = upstream.url.removesuffix("/v1")
    home.write(root)
    code, found, _ = await home.examine()
    (finding,) = found["backends"]
    assert (code, finding["level"]) == (0, "warning")
    assert finding["found"] == f"main: {root} answers, but has no list of models (404); {upstream.url} has one"
    assert finding["todo"].endswith(upstream.url)
    assert not any("Authorization" in call.headers for call in upstream.calls)
    code, found, _ = await home.examine("--upstream", root)
    assert (code, worst(found["backends"])["todo"]) == (0, finding["todo"])


async def test_an_endpoint_that_lists_no_models_anywhere_or_below_its_root_is_not_doubted(
    home: Home, upstream: Upstream
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({}, status=200 if request.path == "/models" else 404)

    upstream.answer = answer
    for url in (upstream.url, upstream.url.removesuffix("/v1"), upstream.url.removesuffix("/v1") + "/api"):
        home.write(url)
        _, found, _ = await home.examine()
        assert [(one["level"], one["found"]) for one in found["backends"]] == [("ok", f"main: {url} answers")]


async def test_a_certificate_that_is_not_accepted_is_named(home: Home, tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*self_signed(tmp_path))
    runner = web.AppRunner(web.Application())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        home.write(f"https://127.0.0.1:{runner.addresses[0][1]}/v1")
        _, found, _ = await home.examine()
    finally:
        await runner.cleanup()
    assert "sends a certificate that is not accepted: self-signed certificate" in worst(found["backends"])["found"]


async def test_a_gateway_that_runs_is_asked_for_its_health(home: Home, upstream: Upstream) -> None:
    listen, admin = free_ports(2)
    ports = {"listen": f"127.0.0.1:{listen}", "admin": f"127.0.0.1:{admin}", "drain_timeout": "1s"}
    path = home.write(upstream.url, embedder={"adapter": "hash"}, server=ports)
    async with served_by_process(path) as process:
        code, found, _ = await home.examine()
        assert code == 0
        assert [port["found"].rpartition(": ")[2] for port in found["ports"]] == ["a nearhit answers"] * 2
        assert found["gateway"][-1]["found"].startswith("it runs, policy ")
        assert f"in use by process {process.process.pid} (" in found["data_dir"][0]["found"]
        assert "answers in" in found["store"][0]["found"]
        # A policy that does not load leaves the last one in force: the doctor names both.
        (home.folder / "policies" / "policy.yaml").write_text("version: 2\n")
        refused: Callable[[dict[str, str]], bool] = lambda one: "the last policy was rejected" in one["found"]  # noqa: E731
        async with asyncio.timeout(120):
            while not any(map(refused, (await home.examine())[1]["gateway"])):
                pass


async def test_a_gateway_that_wants_another_token_is_told_from_another_program(
    home: Home, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, admin = free_ports(2)
    ports = {"listen": f"127.0.0.1:{listen}", "admin": f"127.0.0.1:{admin}", "drain_timeout": "1s"}
    path = home.write(
        upstream.url, embedder={"adapter": "hash"}, server=ports, auth={"admin_token_env": "DOCTOR_TOKEN"}
    )
    monkeypatch.setenv("DOCTOR_TOKEN", "the-right-one")
    async with served_by_process(path):
        monkeypatch.setenv("DOCTOR_TOKEN", "another-one")
        code, found, said = await home.examine()
    assert (code, worst(found["gateway"])["level"]) == (0, "warning")
    assert "differs from its token" in worst(found["gateway"])["found"]
    assert worst(found["ports"])["level"] == "ok"
    assert "another-one" not in said


async def test_one_endpoint_without_a_file_is_examined_too(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    listen, admin = free_ports(2)
    monkeypatch.setenv("NEARHIT_SERVER__LISTEN", f"127.0.0.1:{listen}")
    monkeypatch.setenv("NEARHIT_SERVER__ADMIN", f"127.0.0.1:{admin}")
    assert await asyncio.to_thread(main, ["doctor", "--upstream", upstream.url]) == 0
    assert f"backends       main: {upstream.url} answers" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["doctor", "--upstream", "no url"]) == 1
    assert "command line" in capsys.readouterr().out


async def test_it_looks_at_the_addresses_that_serve_was_given(home: Home, upstream: Upstream, taken: int) -> None:
    home.write(upstream.url)
    _, found, _ = await home.examine("--listen", f"127.0.0.1:{taken}")
    assert f"127.0.0.1:{taken} (server.listen)" in worst(found["ports"])["found"]
