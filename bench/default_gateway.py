"""Runs and measures what `bench.default` compares: gateways of the shipped policy, and the encoder alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.certificates import server_certificate
from bench.default_table import EXACT, SEMANTIC, Window
from bench.gateways import free_port, server
from bench.load import open_connections, run_on
from bench.process import children, cpu_seconds, thread_seconds
from bench.prompts import Count, Prompt
from gateway.adapters.onnx.model_files import TOKENIZER_FILE, load_manifest, model_dir_of
from gateway.adapters.onnx.tokenizer import TextTokenizer
from gateway.cache.model_factory import build_encoder
from gateway.config.policy.single_backend import POLICY
from gateway.config.schema import EmbedderConfig
from gateway.long_questions import MAX_WHOLE, split_question

ROOT = Path(__file__).parents[1]
STACK_SAMPLER = Path(__file__).with_name("stack_sampler.py")
VERDICTS = {EXACT: "exact", SEMANTIC: "semantic"}  # of the other kinds: miss
POLL_S, QUIET_S = 0.05, 0.0015  # the gateway is calm if it takes less CPU time than `QUIET_S` in each of `CALM` polls
CALM, SETTLE_S = 3, 40.0  # at most this long; pauses between comparisons of answers grow with the load of the machine
ORIGIN = "https://app.example"
METRIC = re.compile(r"^(nearhit_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Extras:
    """Sections of the configuration beyond the shipped one, and what the clients then need."""

    sections: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    headers: str = ""
    """Lines that each request has in addition."""
    tls: ssl.SSLContext | None = None


NO_EXTRAS = Extras()


@contextlib.contextmanager
def all_on(collector: int) -> Iterator[Extras]:
    """Turn on traces (1 %, sent to the port `collector`), CORS with an `Origin` in each request, and TLS."""
    with server_certificate() as certificate:
        sections = {
            "telemetry": {"traces": {"endpoint": f"http://127.0.0.1:{collector}", "sample": "1%"}},
            "server": {"cors": {"origins": [ORIGIN]}, "tls": certificate.section},
        }
        yield Extras(sections, headers=f"Origin: {ORIGIN}\r\n", tls=certificate.trust)


def serve_options(folder: Path, url: str, extras: Extras) -> list[str]:
    """Return the options of `serve` for the shipped policy. More sections need a file, which then has that policy."""
    if not extras.sections:
        return ["--upstream", url]
    document = {"version": 1, "backends": {"main": {"adapter": "openai", "url": url}}, **extras.sections}
    (folder / "policies").mkdir()
    (folder / "policies" / "default.yaml").write_bytes(POLICY)
    (folder / "config.yaml").write_text(json.dumps(document))
    return ["--config", str(folder / "config.yaml")]


@dataclass
class Gateway:
    """A running gateway. `folder` is where it writes its samples."""

    label: str
    process: subprocess.Popen[bytes]
    port: int
    admin: int
    folder: Path
    start_s: float
    extras: Extras = NO_EXTRAS
    idle: Mapping[int, float] = field(default_factory=dict)
    """Shares of a core, by thread."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def metrics(self) -> dict[tuple[str, str], float]:
        """Return the values of all series by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=30) as answer:
            found = METRIC.finditer(answer.read().decode())
        return {(each[1], each[2] or ""): float(each[3]) for each in found}


@contextlib.contextmanager
def gateway(label: str, tree: Path, upstream: int, extras: Extras = NO_EXTRAS) -> Iterator[Gateway]:
    """Run the gateway of a checkout in a folder of its own, in front of the endpoint at `upstream`.

    Its modules are compiled once and kept, as an installation has them: without that, a start compiles for 0.6 s.
    """
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(STACK_SAMPLER), f"--samples={folder}/samples.json", "serve"]
        arguments += serve_options(Path(folder), f"http://127.0.0.1:{upstream}/v1", extras)
        arguments += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
        # On a busy machine, a lookup must not end early.
        environ = {"NEARHIT_DATA_DIR": folder, "NEARHIT_EMBEDDER__TIMEOUT": "60s", "NEARHIT_STORE__TIMEOUT": "5s"}
        environ |= {"PYTHONDONTWRITEBYTECODE": "", **extras.environ}
        began = time.perf_counter()
        with server(arguments, port, tree, environ) as process:
            yield Gateway(label, process, port, admin, Path(folder), time.perf_counter() - began, extras)


def difference(before: Mapping[int, float], after: Mapping[int, float]) -> dict[int, float]:
    return {number: seconds - before.get(number, 0.0) for number, seconds in after.items()}


async def wait_until_calm(pid: int, idle_share: float = 0.0) -> bool:
    """Wait until the process is quiet, and return whether it is, after `SETTLE_S` at most.

    `idle_share`: of a core that it takes while it is quiet.
    """
    until, quiet, before = time.monotonic() + SETTLE_S, 0, cpu_seconds(pid)
    while quiet < CALM and time.monotonic() < until:
        await asyncio.sleep(POLL_S)
        now = cpu_seconds(pid)
        quiet = quiet + 1 if now - before < QUIET_S + 1.3 * idle_share * POLL_S else 0
        before = now
    return quiet == CALM


def verdict_of(kind: str) -> str:
    return f'verdict="{VERDICTS.get(kind, "miss")}"'


async def window(
    to: Gateway, requests: list[bytes], kind: str, connections: int, idle_share: float = 0.0
) -> tuple[Window, dict[int, float]]:
    """Return the figures of a window, and the seconds of each thread. `idle_share`: as `calm` has it."""
    async with open_connections(to.port, connections, to.extras.tls) as links:
        metrics, before, store = to.metrics(), thread_seconds(to.pid), store_seconds(to.pid)
        began = time.perf_counter()
        load = await run_on(links, to.pid, requests)
        settled = await wait_until_calm(to.pid, idle_share)
    spent = difference(before, thread_seconds(to.pid))
    seconds, store = time.perf_counter() - began, store_seconds(to.pid) - store
    spent = {number: max(0.0, each - to.idle.get(number, 0.0) * seconds) for number, each in spent.items()}
    later, count = to.metrics(), len(requests)

    def more(name: str, label: str = "") -> float:
        return sum(value - metrics.get(key, 0.0) for key, value in later.items() if key[0] == name and label in key[1])

    figures = Window(
        requests=count,
        cpu_us=1e6 * sum(spent.values()) / count,
        p50_ms=load.p50_ms,
        per_second=load.per_second,
        loop_us=1e6 * spent[to.pid] / count,
        store_us=1e6 * store / count,
        on_path=more("nearhit_requests_total", verdict_of(kind)) / count,
        judged=more("nearhit_stage_seconds_count", 'stage="verify"') / count,
        late=more("nearhit_late_vectors_total", 'result="dropped"'),
        settled=settled,
    )
    return figures, spent


def store_seconds(pid: int) -> float:
    return sum(map(cpu_seconds, children(pid)))


def embedded_text(prompt: Prompt) -> str:
    """Return the text that the gateway embeds: of a long question only the part that asks."""
    if len(prompt.text) <= MAX_WHOLE:
        return prompt.text
    return split_question(prompt.text).focus or ""


class Encoder:
    """`Encoder` embeds texts in a process of its own, which has the gateways' core."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def cost_us(self, texts: Sequence[str]) -> float:
        """Return CPU microseconds per text, one text at a time."""
        assert self._process.stdin is not None and self._process.stdout is not None  # both are pipes
        self._process.stdin.write(json.dumps(list(texts)) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


@contextlib.contextmanager
def encoder() -> Iterator[Encoder]:
    command = [sys.executable, "-m", "bench.default", "--embed"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes) as process:
        alone = Encoder(process)
        alone.cost_us(["warm up"])
        yield alone
        process.terminate()


def embed() -> None:
    """Answer each line of texts with their cost, as `Encoder` asks."""
    model = build_encoder(EmbedderConfig())
    for line in sys.stdin:
        texts, began = json.loads(line), time.thread_time()
        for text in texts:
            model.encode([text])
        print(1e6 * (time.thread_time() - began) / len(texts), flush=True)


async def heads(to: Gateway, requests: Sequence[bytes], connections: int = 8) -> list[bytes]:
    """Return the head of each answer, which is whole or says that nothing is cached."""
    found, rest = [b""] * len(requests), iter(enumerate(requests))

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", to.port, ssl=to.extras.tls)
        for at, request in rest:
            writer.write(request)
            found[at] = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\ncontent-length: *(\d+)", found[at])
            if length is None or not found[at].startswith((b"HTTP/1.1 200", b"HTTP/1.1 504")):
                raise AssertionError(f"expected a whole answer with 200 or 504, got {found[at].decode()}")
            await reader.readexactly(int(length[1]))
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(ask())
    return found


def token_counter() -> Count:
    """Return the count of tokens that the embedding model has for a text."""
    folder = model_dir_of(EmbedderConfig())
    reader = TextTokenizer(folder / TOKENIZER_FILE, load_manifest(folder).reading)
    return lambda text: len(reader.read(text).ids)
