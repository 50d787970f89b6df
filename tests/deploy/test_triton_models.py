"""The text interface of `deploy/triton`, on a real Triton before a stub with the engine's tensors, behind a gateway."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from gateway.features.demo.errors import TritonUnavailable
from gateway.features.demo.triton_environment import ensure_triton
from gateway.features.demo.triton_server import TritonPorts, TritonServer
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.triton import CHECKOUT, free_ports

TOGETHER = 3  # as in the stub
MODELS = CHECKOUT / "deploy" / "triton" / "models"


def lay_out(repository: Path) -> Path:
    """`light` as it is deployed, and in its engine's place a stub on the CPU."""
    shutil.copytree(MODELS / "light", repository / "light")
    engine = repository / "light_vllm"
    (engine / "1").mkdir(parents=True)
    config = (MODELS / "light_vllm" / "config.pbtxt").read_text()
    config = config.replace('backend: "vllm"', 'backend: "python"').replace(
        "KIND_GPU, count: 1, gpus: [ 0 ]", "KIND_CPU"
    )
    assert "KIND_CPU" in config
    (engine / "config.pbtxt").write_text(config)
    shutil.copy(Path(__file__).with_name("stub_engine.py"), engine / "1" / "model.py")
    return repository


async def test_the_gateway_gets_answers_limits_counts_and_failures(tmp_path: Path) -> None:
    try:
        environment = await asyncio.to_thread(ensure_triton, CHECKOUT / ".venv-triton", print)
    except TritonUnavailable as reason:
        pytest.skip(str(reason))
    repository = lay_out(tmp_path / "models")
    server = await TritonServer.start(environment, repository, tmp_path, TritonPorts(*free_ports(3)))
    try:
        config = config_of(tmp_path / "data", {"main": {"adapter": "triton", "url": server.url, "model": "light"}})
        async with gateway_of(config) as served:
            # Not in the prompt of the request, so from the model's `prompt`: the chat format around it.
            whole = await served.chat("What is a cache?")
            assert whole.text.startswith("<|im_start|>user")
            assert "What is a cache?" in whole.text
            assert "<|im_start|>assistant" in whole.text
            choice = whole.json["choices"][0]
            assert choice["finish_reason"] == "stop"
            assert whole.json["usage"]["completion_tokens"] == len(whole.text.split())

            long = await served.chat("word " * 40)
            assert len(long.text.split()) > 16, "vLLM stops there where nobody names a limit"

            cut = await served.chat("one two three four five six", max_tokens=3)
            assert len(cut.text.split()) == 3
            assert cut.json["choices"][0]["finish_reason"] == "length"

            streamed = await served.chat("Say it in pieces", stream=True)
            events = [line[6:] for line in streamed.body.decode().splitlines() if line.startswith("data: {")]
            deltas = [json.loads(event)["choices"][0]["delta"].get("content") for event in events]
            assert "".join(filter(None, deltas)).startswith("<|im_start|>user")
            assert len([d for d in deltas if d]) > 3

            async with asyncio.timeout(120):
                crowd = await asyncio.gather(*(served.chat(f"number {i} together") for i in range(TOGETHER)))
            assert [answer.status for answer in crowd] == [200] * TOGETHER

            failed = await served.chat("please break now")
            assert failed.status == 502
            assert (await served.chat("still there?")).status == 200
    finally:
        await server.stop()
