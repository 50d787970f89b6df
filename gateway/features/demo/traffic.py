"""`nearhit demo` runs a real Triton with two models and the gateway in front of it, and sends sample requests."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import orjson

from gateway.adapters.onnx.model_files import default_model_dir
from gateway.admin.policy_manager import check_folder
from gateway.app import Gateway, running
from gateway.cli.output import print_warning
from gateway.cli.serve import follow_policy, freeze_startup
from gateway.cli.signals import wait_for_signal
from gateway.config.load import load_config
from gateway.config.units import Address
from gateway.errors import StartupError
from gateway.features.demo.build import start_demo_models
from gateway.http_server.listening import allow_files
from gateway.observability import json_logging

# Ports of Triton; config.yaml names the gRPC port.
HTTP_PORT, GRPC_PORT, METRICS_PORT = 8000, 8001, 8002

HARD_QUESTION = (
    "Explain step by step why a follower of a coalesced request reads at its own speed, compare that with a plain "
    "cache, and analyse what happens when the leader's client leaves."
)
# Each row: the behaviour to show, and a question that shows it.
SAMPLE = (
    ("a first question", "What is a verdict?"),
    ("the same again", "What is a verdict?"),
    ("in other words", "what's a verdict"),
    ("another one", "What is single-flight?"),
    ("a hard one", HARD_QUESTION),
    ("the hard one again", HARD_QUESTION),
    ("alike, but not the same", "What is not a verdict?"),
    ("a short question", "Who may share an answer?"),
    ("in other words", "Who can share an answer?"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlayedRequest:
    label: str
    question: str
    served: str  # exact | semantic | light | large
    similarity: str
    complexity: str
    ms: float


async def demo(config_path: Path, triton_env: Path, environ: Mapping[str, str], *, as_json: bool = False) -> None:
    """Run the demo until a signal; every process that it started ends with it.

    Raises an error with one sentence on the obstacle: a port in use, a missing library, a failed download.
    """
    json_logging.configure_logging("warning")
    config = load_config(config_path, environ)
    allow_files(config)
    for key, address in (("server.listen", config.server.listen), ("server.admin", config.server.admin)):
        require_free(key, address)
    triton = await start_demo_models(
        env=triton_env,
        models=config.embedder.model_dir or default_model_dir(),
        doc_root=config_path.absolute().parent,  # noqa: ASYNC240 - nothing is served yet
        run_dir=config.data_dir / "triton",
        grpc_port=GRPC_PORT,
        http_port=HTTP_PORT,
        metrics_port=METRICS_PORT,
        progress=print_warning if as_json else print_line,
    )
    try:
        policy = check_folder(config.policies, config)
        async with running(config, policy, environ, policies=config.policies) as gateway, follow_policy(gateway):
            with freeze_startup(gateway):
                played = await send_sample(gateway)
                print_line(
                    orjson.dumps({"played": [asdict(row) for row in played]}).decode()
                    if as_json
                    else format_table(played)
                )
                if not as_json:
                    print_line(summary_text(gateway))
                await wait_for_signal()
    finally:
        await triton.stop()


def require_free(key: str, address: Address) -> None:
    """Check that the address is free, before the models are built for minutes. Raises `StartupError`."""
    with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise StartupError(f"cannot listen on {address} ({key}): {error.strerror}") from None


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def send_sample(gateway: Gateway) -> list[PlayedRequest]:
    """Send the sample, one request after the other."""
    host, port = gateway.data_address
    url = f"http://{host}:{port}/v1/chat/completions"
    # A new tenant on each run has no stored answers, so that the sample shows the same every time.
    headers = {"Authorization": f"Bearer demo-{os.urandom(8).hex()}"}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), headers=headers) as session:
        return [await _send(session, url, label, question) for label, question in SAMPLE]


async def _send(session: aiohttp.ClientSession, url: str, label: str, question: str) -> PlayedRequest:
    body = {"model": "demo", "messages": [{"role": "user", "content": question}]}
    started = time.perf_counter()
    async with session.post(url, json=body) as response:
        await response.read()
        ms = 1e3 * (time.perf_counter() - started)
        headers, status = response.headers, response.headers.get("Cache-Status", "")
    detail = next((part.partition("=")[2] for part in status.split("; ") if part.startswith("detail=")), "")
    served = detail if "; hit" in status else headers.get("x-nearhit-backend", f"error {response.status}")
    return PlayedRequest(
        label,
        question,
        served,
        headers.get("x-nearhit-similarity", ""),
        headers.get("x-nearhit-complexity", ""),
        ms,
    )


def format_table(rows: list[PlayedRequest]) -> str:
    """Return a table for the terminal: each request, and the source of its response."""
    lines = ["", f"{'':<24} {'served from':<12} {'similarity':>10} {'complexity':>10} {'ms':>8}  question"]
    for row in rows:
        question = row.question if len(row.question) <= 48 else row.question[:47] + "\u2026"
        lines.append(
            f"{row.label:<24} {row.served:<12} {row.similarity:>10} {row.complexity:>10} {row.ms:>8.1f}  {question}"
        )
    return "\n".join(lines)


def summary_text(gateway: Gateway) -> str:
    data, admin = ("http://{}:{}".format(*address) for address in (gateway.data_address, gateway.admin_address))
    return f"""
Ask it yourself:

  curl -i {data}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "demo", "messages": [{{"role": "user", "content": "What is a verdict?"}}]}}'

What it saved: {admin}/dashboard#/spend, or nearhit report
Dashboard: {admin}/dashboard
Ctrl-C stops everything."""
