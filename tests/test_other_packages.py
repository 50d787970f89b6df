"""Backends and indexes of other packages, by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.load import read_config
from tests.fixtures.gateways import LOOSE, NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream

SOURCE = '''
from typing import Any, Literal

from pydantic import Field

from gateway.config.backends import BackendSection
from gateway.config.fields import Text
from gateway.dialects.openai.dialect import OpenAI
from gateway.messages import FullBody, Response
from gateway.upstream.concurrency_limiter import LimitedBackend
from gateway.upstream.upstream import UpstreamConfig
from tests.fixtures.fakes import ExactIndex


class ParrotSection(BackendSection):
    """A backend that gives one answer."""

    builder = "parrot:Parrots"

    adapter: Literal["parrot"]
    text: Text = Field(examples=["hello"])
    """The answer."""


class Parrots:
    def __init__(self, core):
        self._clock = core.clock

    def __call__(self, name, section, resends):
        return [UpstreamConfig(Parrot(name, section, self._clock), "in process", provider="parrot")]


class Parrot(LimitedBackend):
    http = False
    speaks = "text"

    def __init__(self, name, section, clock):
        super().__init__(name, section, clock)
        self._text = section.text

    async def send(self, request):
        call = request.call
        answer = call.dialect.text_answer(call, answer_id=request.id, created=0, model="parrot")
        events = (*answer.start(), answer.delta(self._text), *answer.finish("stop", 1, 1))
        body = FullBody(call.dialect.whole(call, [event.data for event in events]))
        return Response(200, (("Content-Type", "application/json"),), body)

    async def models(self, request):
        return []

    async def ready(self):
        return True

    async def close(self):
        pass


def open_index(life, config, environ, embedder, clock, file):
    index = ExactIndex(embedder.dimension, max_entries=config.index.max_entries)
    life.callback(index.close)
    return index, None
'''


@pytest.fixture
def parrot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution on the path that declares a backend and an index."""
    place = tmp_path / "site"
    about = place / "parrot-1.0.dist-info"
    about.mkdir(parents=True)
    (place / "parrot.py").write_text(SOURCE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[nearhit.backends]\nparrot = parrot:ParrotSection\nbroken = parrot:NOTHING\n"
        "[nearhit.indexes]\nexhaustive = parrot:open_index\n"
    )
    monkeypatch.syspath_prepend(str(place))
    yield
    sys.modules.pop("parrot", None)


def faults(tmp_path: Path, *lines: str) -> list[str]:
    """Return the faults of a configuration whose backends and index are these lines."""
    file = tmp_path / "config.yaml"
    file.write_text("\n".join(["version: 1", *lines]) + "\n")
    return [str(fault).removeprefix(f"{file}:") for fault in read_config(file, {}).faults]


@pytest.mark.usefixtures("parrot")
async def test_a_backend_of_another_package_answers_through_a_gateway(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "parrot", "text": "Pieces of eight."}})
    async with gateway_of(config, NO_CACHE) as served:
        answer = await served.chat("Who is a good bird?")
        assert answer.json["choices"][0]["message"]["content"] == "Pieces of eight."
        assert answer.headers["x-nearhit-backend"] == "main"


@pytest.mark.usefixtures("parrot")
def test_a_check_names_each_fault_of_the_section_of_another_package(tmp_path: Path) -> None:
    assert faults(tmp_path, "backends: {main: {adapter: parrot, text: hello}}") == []
    found = faults(tmp_path, "backends:", "  main:", "    adapter: parrot", "    texts: hello", "    adaptive: maybe")
    assert len(found) == 2
    assert found[0].startswith("5: backends.main.texts: unknown key, did you mean 'text'?")
    assert found[1].startswith("6: backends.main.adaptive: expected on or off")


def test_an_adapter_is_unknown_while_its_package_is_not_installed(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "backends: {main: {adapter: parrot, text: hello}}")
    assert fault.startswith("2: backends.main.adapter: expected one of: openai, anthropic, triton, kserve")
    main = "backends: {main: {adapter: openai, url: 'http://h/v1'}}"
    (fault,) = faults(tmp_path, main, "index: {adapter: exhaustive}")
    assert fault == "3: index.adapter: expected one of: faiss, milvus, got 'exhaustive'"


@pytest.mark.usefixtures("parrot")
def test_a_broken_backend_of_another_package_is_a_fault_that_names_it(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "backends: {main: {adapter: broken}}")
    assert "backends.main.adapter: nearhit.backends: broken of parrot cannot be loaded" in fault


@pytest.mark.usefixtures("parrot")
async def test_an_index_of_another_package_finds_similar_questions(tmp_path: Path, upstream: Upstream) -> None:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    async with gateway_of(config_of(tmp_path, backends, index={"adapter": "exhaustive"}), LOOSE) as served:
        await served.chat("how do I reset my password please")
        answer = await served.chat("how do I reset my password, please?")
        assert "detail=semantic" in answer.headers["cache-status"]
