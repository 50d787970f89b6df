"""Runs the load tests of `deploy/loadtest` before a gateway: `make loadtest`, or `python -m bench.loadtest`.

Each tool gets a gateway of its own, `nearhit serve --upstream` without a file, before `nearhit stub`, which answers
after 300 ms. The commands are those of `docs/performance.md`. Latencies, requests per second and failures are those
that the tool reports; the shares of hits come from the gateway's metrics. A tool that is not installed is left out,
with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.gateways import free_port, server
from deploy.loadtest.mix import QUESTIONS

ROOT = Path(__file__).parents[1]
HERE = ROOT / "deploy" / "loadtest"
TOOLS = ROOT / ".venv-loadtest"
TOKENIZER = ROOT / ".venv" / "share" / "nearhit" / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"
MODEL = "gpt-4o-mini"
DELAY = "300ms"
CONCURRENCY, RATE = 20, 20  # users or calls in flight, and requests per second of k6
PREPARED = 20_000  # requests in the file; a tool that takes more of them begins again
PATIENCE_S = 240.0  # beyond the time of the load: a heavy tool takes a minute to start
VERDICTS = ("exact", "semantic", "coalesced", "miss")
METRIC = re.compile(r'^nearhit_requests_total\{.*?verdict="(\w+)".*?\} ([\d.e+]+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """The load that a tool is to make. `folder` is its own, with the requests and the tokenizer."""

    url: str
    seconds: int
    folder: Path

    @property
    def prompts(self) -> str:
        """The requests with the key `prompt`."""
        return str(self.folder / "prompt.jsonl")

    @property
    def texts(self) -> str:
        """The requests with the key `text`."""
        return str(self.folder / "text.jsonl")

    @property
    def tokenizer(self) -> str:
        """A folder that transformers can read."""
        return str(self.folder / "tokenizer")


@dataclass(frozen=True, slots=True)
class Figures:
    """The report of a tool. Latencies are those of whole answers, in milliseconds."""

    requests: int
    failures: int
    per_second: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of a tool, and the gateway's shares of its requests by verdict."""

    tool: str
    figures: Figures
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Tool:
    """A load generator: its command, and the way to read its report."""

    command: Callable[[Load], Sequence[str]]
    read: Callable[[Load], Figures]


def _locust_command(load: Load) -> Sequence[str]:
    return [
        *("locust", "-f", str(HERE / "locustfile.py"), "--headless", "--host", load.url),
        *("-u", str(CONCURRENCY), "-r", str(CONCURRENCY), "-t", f"{load.seconds}s"),
        *("--json-file", str(load.folder / "locust")),
    ]


def _locust_figures(load: Load) -> Figures:
    entries = json.loads((load.folder / "locust.json").read_text())
    took = sorted(float(ms) for each in entries for ms, count in each["response_times"].items() for _ in range(count))
    seconds = max(e["last_request_timestamp"] for e in entries) - min(e["start_time"] for e in entries)
    failures = sum(each["num_failures"] for each in entries)
    return Figures(len(took), failures, len(took) / seconds, _quantile(took, 0.5), _quantile(took, 0.99))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _k6_command(load: Load) -> Sequence[str]:
    given = {"HOST": load.url, "REQUESTS": load.prompts, "RATE": RATE, "DURATION": f"{load.seconds}s", "MODEL": MODEL}
    variables = [part for name, value in given.items() for part in ("-e", f"{name}={value}")]
    summary = str(load.folder / "k6.json")
    return ["k6", "run", "--no-usage-report", "--quiet", "--summary-export", summary, *variables, str(HERE / "k6.js")]


def _k6_figures(load: Load) -> Figures:
    metrics = json.loads((load.folder / "k6.json").read_text())["metrics"]
    took, count = metrics["http_req_duration"], int(metrics["http_reqs"]["count"])
    return Figures(count, metrics["checks"]["fails"], metrics["http_reqs"]["rate"], took["med"], took["p(99)"])


def _aiperf_command(load: Load) -> Sequence[str]:
    return [
        *("aiperf", "profile", "--url", load.url, "--model", MODEL, "--endpoint-type", "chat", "--streaming"),
        *("--input-file", load.texts, "--custom-dataset-type", "single_turn"),
        *("--tokenizer", load.tokenizer, "--use-server-token-count"),
        *("--concurrency", str(CONCURRENCY), "--benchmark-duration", str(load.seconds)),
        *("--no-gpu-telemetry", "--no-server-metrics", "--ui", "none", "--artifact-dir", str(load.folder / "aiperf")),
    ]


def _aiperf_figures(load: Load) -> Figures:
    report = json.loads((load.folder / "aiperf" / "profile_export_aiperf.json").read_text())
    took, failures = report["request_latency"], sum(each["count"] for each in report["error_summary"])
    count = int(report["request_count"]["avg"])
    return Figures(count + failures, failures, report["request_throughput"]["avg"], took["p50"], took["p99"])


def _guidellm_command(load: Load) -> Sequence[str]:
    # Its check of the backend asks for /health, which goes to the endpoint.
    return [
        *("guidellm", "run", "--backend", f"kind=openai_http,target={load.url},model={MODEL},validate_backend=false"),
        *("--data", f"kind=json_file,path={load.prompts}"),
        *("--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"),
        *("--profile", f"kind=concurrent,streams={CONCURRENCY}"),
        *("--constraint", f"kind=max_duration,seconds={load.seconds}"),
        *("--output", f"kind=json,path={load.folder / 'guidellm.json'}", "--disable-console-interactive"),
    ]


def _guidellm_figures(load: Load) -> Figures:
    (report,) = json.loads((load.folder / "guidellm.json").read_text())["benchmarks"]
    metrics, ended = report["metrics"], report["metrics"]["request_totals"]
    took = {name: 1000 * seconds for name, seconds in metrics["request_latency"]["successful"]["percentiles"].items()}
    rate = metrics["requests_per_second"]["successful"]["mean"]
    return Figures(ended["successful"] + ended["errored"], ended["errored"], rate, took["p50"], took["p99"])


KNOWN: Mapping[str, Tool] = {
    "locust": Tool(_locust_command, _locust_figures),
    "k6": Tool(_k6_command, _k6_figures),
    "aiperf": Tool(_aiperf_command, _aiperf_figures),
    "guidellm": Tool(_guidellm_command, _guidellm_figures),
}


def program(name: str, tools: Path) -> Path | None:
    """Return the program of a tool in its environment, or None."""
    found = shutil.which(name, path=str(tools / name / "bin"))
    return None if found is None else Path(found)


def prepare(folder: Path, questions: Path) -> None:
    """Write the requests and the tokenizer."""
    for key in ("prompt", "text"):
        with (folder / f"{key}.jsonl").open("w") as file:
            given = ["--requests", str(PREPARED), "--key", key, "--questions", str(questions)]
            command = [sys.executable, str(HERE / "mix.py"), *given]
            subprocess.run(command, stdout=file, check=True)
    (folder / "tokenizer").mkdir()
    shutil.copy(TOKENIZER, folder / "tokenizer")
    (folder / "tokenizer" / "config.json").write_text('{"model_type": "bert"}')


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a gateway and its endpoint. Yield its URL and its admin port."""
    stub, port, admin = free_port(), free_port(), free_port()
    environ = {"NEARHIT_DATA_DIR": str(folder / "var")}
    served = ["gateway", "serve", "--upstream", f"http://127.0.0.1:{stub}/v1", "--log-level", "warning"]
    addresses = ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    with (
        server(["gateway", "stub", "--listen", f"127.0.0.1:{stub}", "--delay", DELAY], stub),
        server([*served, *addresses], port, environ=environ),
    ):
        yield f"http://127.0.0.1:{port}", admin


def verdicts(admin: int) -> Mapping[str, float]:
    """Return the requests so far by verdict."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=30) as answer:
        counted: dict[str, float] = {}
        for verdict, value in METRIC.findall(answer.read().decode()):
            counted[verdict] = counted.get(verdict, 0.0) + float(value)
    return counted


def measure(name: str, path: Path, seconds: int, questions: Path) -> Measurement:
    """Run one tool against a new gateway. Exit with its output if it fails."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        prepare(folder, questions)
        environ = {"MODEL": MODEL, "QUESTIONS": str(questions), "HOME": made}
        with gateway(folder) as (url, admin):
            load = Load(url, seconds, folder)
            _, *arguments = KNOWN[name].command(load)
            done = subprocess.run(
                [str(path), *arguments],
                cwd=folder,
                env=os.environ | environ | {"PATH": f"{path.parent}:{os.environ['PATH']}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=seconds + PATIENCE_S,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stdout[-4000:]}")
            counted = verdicts(admin)
        whole = sum(counted.values()) or 1.0
        shares = {verdict: counted.get(verdict, 0.0) / whole for verdict in VERDICTS}
        return Measurement(name, KNOWN[name].read(load), shares)


def table(rows: Sequence[Measurement]) -> Iterator[str]:
    """Yield the lines of the table in `docs/performance.md`."""
    yield f"| tool | requests | failed | QPS | P50 ms | P99 ms | {' | '.join(VERDICTS)} |"
    yield "| --- " * (6 + len(VERDICTS)) + "|"
    for row in rows:
        each = row.figures
        figures = (str(each.requests), str(each.failures), f"{each.per_second:.1f}", f"{each.p50_ms:.0f}")
        cells = (row.tool, *figures, f"{each.p99_ms:.0f}", *(f"{share:.1%}" for share in row.shares.values()))
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure with each installed tool and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=KNOWN, default=list(KNOWN), help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--questions", type=Path, default=QUESTIONS, help="as for mix.py; default: the project's own")
    parser.add_argument("--tools", type=Path, default=TOOLS, help="folder with an environment for each tool")
    parser.add_argument("--json", type=Path, help="also write the figures into this file")
    given = parser.parse_args()
    rows = []
    for name in given.only:
        path = program(name, given.tools)
        if path is None:
            print(f"{name} is not installed, so it is left out: `make loadtest` installs it", file=sys.stderr)
        else:
            rows.append(measure(name, path, given.seconds, given.questions.absolute()))
    print("\n".join(table(rows)))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
