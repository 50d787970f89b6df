"""The gRPC port outlives calls that no client library sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from gateway.config.schema import ServerConfig
from gateway.features.kserve.grpc import port as port_module
from gateway.steps.error_boundary import Inflight
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.http2 import OPENED, call
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.triton import free_ports
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEALTH, SERVING = b"/grpc.health.v1.Health/Check", b"\0\0\0\0\x02\x08\x01"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Yield the URL of the gRPC port of a gateway process. It serves all tests: none of them may end it."""
    home = tmp_path_factory.mktemp("gateway")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "grpc": address, "drain_timeout": "1s"}
    backends = {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}}
    config = write_config(home, backends, NO_CACHE, server=server, data_dir=str(home / "var"))
    async with served_by_process(config):
        yield f"http://{address}"


async def answer_of(url: str, path: bytes, message: bytes = b"") -> bytes:
    """Return the frames that come until the status of the call."""
    got = b""
    async with connected(url) as wire, asyncio.timeout(120):
        await wire.send(OPENED + call(path, message))
        while b"grpc-status" not in got and (piece := await wire.reader.read(65536)):
            got += piece
    return got


ODD = [b"/\xff\xfe", HEALTH + b"\x94", b"/" + b"\x80" * 99]


async def test_a_call_whose_path_is_not_utf_8_gets_a_status_and_others_are_served(port: str) -> None:
    """The server of grpcio 1.84 and 1.85 ends at such a call."""
    for path in ODD:
        assert b"grpc-status" in await answer_of(port, path)
        assert SERVING in await answer_of(port, HEALTH)


@pytest.mark.parametrize(
    ("method", "status"), [("ModelInfer", 3), ("ModelMetadata", 3), ("ModelReady", 3), ("ModelStreamInfer", 0)]
)
async def test_a_message_that_is_no_protobuf_is_an_invalid_argument(port: str, method: str, status: int) -> None:
    """A stream goes on after it, as after any message that cannot be answered."""
    got = await answer_of(port, f"/inference.GRPCInferenceService/{method}".encode(), b"\xff\xff\xff")
    assert b"grpc-status\x01%d" % status in got
    assert f"the message cannot be parsed: expected a {method.replace('Stream', '')}Request".encode() in got


class OwnServer:
    """A server of grpcio, as far as the port sees it: the first one stops by itself."""

    def __init__(self, made: list[OwnServer]) -> None:
        self.first, self.ports = not made, list[str]()
        made.append(self)

    def add_insecure_port(self, address: str) -> int:
        self.ports.append(address)
        return 7000

    def add_generic_rpc_handlers(self, _: object) -> None: ...

    def add_registered_method_handlers(self, *_: object) -> None: ...

    async def start(self) -> None: ...

    async def stop(self, _: float) -> None: ...

    async def wait_for_termination(self, _: float) -> bool:
        if self.first:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return bool(await asyncio.Event().wait())


async def test_a_server_that_stops_by_itself_is_followed_by_another_on_its_port(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[OwnServer] = []
    monkeypatch.setattr(grpc.aio, "server", lambda **_: OwnServer(made))
    monkeypatch.setattr(port_module, "FIRST_PAUSE_S", 0.0)
    config = ServerConfig.model_validate({"grpc": "127.0.0.1:0"})
    served = port_module.GrpcPort(config, FakeClock(), lambda _: None, Inflight(9))  # type: ignore[arg-type, return-value]
    assert (await served.start())[1] == 7000
    await until(lambda: len(made) == 2 and made[1].ports)
    await served.stop()
    assert [each.ports for each in made] == [["127.0.0.1:0"], ["127.0.0.1:7000"]]
    assert "the gRPC server stopped, and starts again" in caplog.text
