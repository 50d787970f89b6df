"""Makes the files that a gateway with many entries leaves behind, and measures a start from them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from redis import Redis

from bench.gateways import free_port
from bench.questions import DIMENSION, Matrix
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.records import encode
from gateway.entries import Entry

SCOPE = "5" * 64
EMBEDDER = HashEncoder(DIMENSION).fingerprint
STORE_BYTES = 6 * 2**30
CONFIG = f"""
version: 1
server: {{{{listen: 127.0.0.1:{{port}}, admin: 127.0.0.1:{{admin}}}}}}
embedder: {{{{adapter: hash}}}}
store: {{{{max_memory: {STORE_BYTES}}}}}
backends:
  main: {{{{adapter: openai, url: http://127.0.0.1:1/v1}}}}
"""
POLICY = "version: 1\nroutes: [{name: default, match: {}, route: {backend: main}}]\n"


def fingerprint(i: int) -> str:
    return hashlib.sha256(i.to_bytes(8, "big")).hexdigest()


async def fill_store(data_dir: Path, stored: Matrix, scope: str = SCOPE) -> None:
    """Write records of all entries with their vectors into the embedded store's file, as a gateway would."""
    server = await EmbeddedValkey.start(data_dir, max_memory=STORE_BYTES)
    try:
        with Redis.from_url(server.url) as client:
            client.config_set("appendonly", "no")  # one file in the end, instead of many on the way
            for i in range(0, len(stored), 1000):
                put(client, i, stored[i : i + 1000], scope)
            client.config_set("appendonly", "yes")
            while (
                client.info("persistence")["aof_rewrite_in_progress"]
                or client.info("persistence")["aof_rewrite_scheduled"]
            ):
                await asyncio.sleep(0.1)
    finally:
        await server.stop()


def put(client: Redis, first: int, vectors: Matrix, scope: str) -> None:
    now = time.time()
    expires = now + 86400
    template = Entry(
        fingerprint="", scope=scope, tenant="t", route="default", model="m", operation="chat.completions",
        dialect="openai", question="What is it, and how does it come about?", streamed=False, payload=(b"x" * 400,),
        content_type="application/json", created=now, expires=expires, backend="main", input_tokens=1, output_tokens=1,
        cost_dollars=0.0, upstream_s=0.1, tags=(),
    )  # fmt: skip
    with client.pipeline(transaction=False) as pipe:
        for i, vector in enumerate(vectors, first):
            name = fingerprint(i)
            fields: dict[Any, Any] = {"record": encode(replace(template, fingerprint=name)), "scope": scope}
            fields |= {"expires": repr(expires), "vector": vector.tobytes(), "embedder": EMBEDDER}
            pipe.hset(ONE_SERVER.entry(name), mapping=fields)
            pipe.pexpireat(ONE_SERVER.entry(name), int(expires * 1000))
            pipe.zadd(ONE_SERVER.list_key(name), {name: expires})
        pipe.execute()


@dataclass(frozen=True)
class StartFigures:
    """The start of a gateway: seconds since the process was made, and megabytes of resident memory."""

    listen_s: float  # until it serves
    start_s: float  # until its index is complete
    start_cpu_s: float
    gateway_mb: float
    gateway_peak_mb: float


def start(entries: int, folder: Path) -> StartFigures:
    """Start a gateway on the output of `measure`, and wait until its index holds everything."""
    port, admin = free_port(), free_port()
    (folder / "policies").mkdir()
    (folder / "policies" / "default.yaml").write_text(POLICY)
    (folder / "config.yaml").write_text(CONFIG.format(port=port, admin=admin))
    begun, listen_s = time.perf_counter(), 0.0
    process = subprocess.Popen([sys.executable, "-m", "gateway", "serve"], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        while not (ready := get(f"http://127.0.0.1:{port}/readyz")).get("index_ready"):
            if process.poll() is not None:
                raise SystemExit(f"the gateway ended with {process.returncode}")
            if ready and not listen_s:
                listen_s = time.perf_counter() - begun
            time.sleep(0.02)
        start_s = time.perf_counter() - begun
        cache = get(f"http://127.0.0.1:{admin}/admin/stats")
        if f'"index": {entries}' not in json.dumps(cache):
            raise SystemExit(f"the index does not hold {entries} entries: {json.dumps(cache)[:2000]}")
        status = Path(f"/proc/{process.pid}/status").read_text()
        sizes = {line.split(":")[0]: int(line.split()[1]) / 1e3 for line in status.splitlines() if line.endswith("kB")}
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
        return StartFigures(listen_s or start_s, start_s, cpu_s, sizes["VmRSS"], sizes["VmHWM"])
    finally:
        process.terminate()
        process.wait(60)


def get(url: str) -> dict[str, Any]:
    """Return the answer; {} until the gateway answers."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return dict(json.load(answer))
    except OSError:
        return {}
