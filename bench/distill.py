"""Measures a distilled light model and its teacher on a real Triton behind the gateway: accuracy, latency, shares.

`make distill DATA=train.csv HELD_OUT=test.csv`, or `python -m bench.distill --repository DIR --name NAME --rows FILE`
after `nearhit distill ... --large`. One client sends one question after the other; nothing is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gateways import free_port, gateway_of
from gateway.features.demo.triton_environment import ensure_triton
from gateway.features.demo.triton_server import TritonPorts, TritonServer
from gateway.features.distillation.data import TrainingRow, read_data
from gateway.features.distillation.report import Share, share_with_interval

TRITON_ENV = Path(__file__).parents[1] / ".venv-triton"
CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
backends:
  light: {{adapter: triton, url: "{triton}", model: "{name}"}}
  large: {{adapter: triton, url: "{triton}", model: "{large}"}}
  inside: {{adapter: onnx, path: "{entry}", task: classify}}
"""
POLICY = """
version: 1
routes:
  - {{name: large, match: {{model: large}}, route: {{backend: large}}}}
  - {{name: light, match: {{model: light}}, route: {{backend: light}}}}
  - name: verifier
    match: {{model: verifier}}
    route: {{light: light, large: large, escalate_above: 0, cascade: {{check: verifier, accept_above: 0}}}}
  - name: default
    match: {{}}
    route:
      light: inside
      large: large
      escalate_above: 0
      cascade: {{check: logprobs, accept_above: {accept_above}}}
"""
MODES = {
    "large": "large alone, on Triton",
    "light": "light alone, on Triton",
    "verifier": "both on Triton, `verifier`",
    "logprobs": "light in the gateway, `logprobs`",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    right: Share
    light: Share
    p50_ms: float
    p95_ms: float


def ask_all(port: int, model: str, rows: Sequence[TrainingRow]) -> Measurement:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    took, right, light = list[float](), list[bool](), list[bool]()
    for row in [rows[0], *rows]:  # the first one warms up
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": row.text}]})
        started = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        took.append(1e3 * (time.perf_counter() - started))
        if answer.status != 200:
            raise SystemExit(f"{model}: {answer.status} {said}")
        right.append(said["choices"][0]["message"]["content"] == row.label)
        light.append(answer.headers["x-nearhit-backend"] != "large")
    connection.close()
    ordered = sorted(took[1:])
    p95 = ordered[int(0.95 * len(ordered))]
    return Measurement(share_with_interval(right[1:]), share_with_interval(light[1:]), statistics.median(ordered), p95)


def table(found: dict[str, Measurement], ratio: float) -> str:
    lines = [f"{'':<34}{'right':>8}{'95 %':>17}{'light':>8}{'p50 ms':>9}{'p95 ms':>9}{'cost':>7}"]
    for mode, each in found.items():
        low_high = f"{each.right.low:.1%} to {each.right.high:.1%}"
        # A cascade pays for the light model's answer in any case.
        cost = 1.0 if mode == "large" else ratio + (0.0 if mode == "light" else 1.0 - each.light.share)
        lines.append(f"{MODES[mode]:<34}{each.right.share:>8.1%}{low_high:>17}{each.light.share:>8.1%}"
                     f"{each.p50_ms:>9.1f}{each.p95_ms:>9.1f}{cost:>7.0%}")  # fmt: skip
    lines.append(f"cost: of the large model's for all, where a light answer costs {ratio:.0%} of a large one.")
    return "\n".join(lines)


def newest_version(repository: Path, name: str) -> Path:
    """Return the folder of the newest version."""
    versions = [each for each in (repository / name).iterdir() if each.name.isdigit()]
    return max(versions, key=lambda each: int(each.name)).absolute()


@contextlib.contextmanager
def start_triton(repository: Path) -> Iterator[str]:
    """Run a Triton, and yield its URL."""
    environment = ensure_triton(TRITON_ENV, print)
    with tempfile.TemporaryDirectory() as home, asyncio.Runner() as runner:
        ports = TritonPorts(grpc=free_port(), http=free_port(), metrics=free_port())
        triton = runner.run(TritonServer.start(environment, repository, Path(home), ports))
        try:
            yield triton.url
        finally:
            runner.run(triton.stop())


def measure(
    triton: str, repository: Path, name: str, large: str, rows: Sequence[TrainingRow]
) -> dict[str, Measurement]:
    """Return the measurement of each mode. `name`, `large`: models of the Triton at the URL `triton`."""
    entry = newest_version(repository, name)
    accept_above = json.loads((entry / "config.json").read_text())["accept_above"]
    policy = POLICY.format(accept_above=round(accept_above, 6))
    with gateway_of(CONFIG, policy, triton=triton, name=name, large=large, entry=entry) as it:
        return {mode: ask_all(it.port, mode, rows) for mode in MODES}


def draw_rows(file: Path, requests: int) -> list[TrainingRow]:
    rows = list(read_data(file).rows)
    random.Random(1).shuffle(rows)
    return rows[:requests]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("build/models"))
    parser.add_argument("--name", default="intents")
    parser.add_argument(
        "--rows", type=Path, required=True, help="rows that were not learnt from, as nearhit distill reads"
    )
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--ratio", type=float, default=0.1, help="what a light answer costs, of a large one")
    given = parser.parse_args()
    rows = draw_rows(given.rows, given.requests)
    with start_triton(given.repository) as triton:
        found = measure(triton, given.repository, given.name, f"{given.name}-large", rows)
    print(f"{len(rows)} questions of {given.rows.name}, one after the other\n{table(found, given.ratio)}")


if __name__ == "__main__":
    main()
