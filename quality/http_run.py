"""Sends a stream through the real gateway: `nearhit serve` as a child process, with a promise, in front of a stub."""

# ruff: noqa: S603 (a command of ours)
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from bench.gateways import free_port, gateway_of
from quality.figures import worst
from quality.labels import Labels
from quality.streams import Stream
from quality.stub import Client, answer_of, name_of, stub

CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
embedder: {{adapter: {embedder}}}
verifier: {{adapter: {verifier}}}
index: {{checkpoint: off}}
backends:
  main: {{adapter: openai, url: http://127.0.0.1:{upstream}/v1}}
"""
POLICY = """
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{semantic: {{ttl: 24h, max_wrong_hits: {budget}%, audit: {audit}%}}}}
    route: {{backend: main}}
"""
LONGEST_S = 900  # of one run; the evaluation's 4,653 requests take 30 to 60 s on two cores


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of the gateway in a run."""

    verifier: str
    embedder: str = "onnx"
    audit: float = 0.05


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """The figures of one run; shares in [0, 1]. `stated`: the gateway's own figure, None if it has none."""

    budget: float
    requests: int
    served: float
    error: float  # wrong over all requests
    error_audited: float
    wrong_of_served: float
    hit: float  # right hits over requests that have an answer in the cache
    p50_hit_ms: float | None
    worst: int  # wrong hits of the worst window of 1,000 requests
    worst_audited: int
    stated: float | None
    stated_low: float | None
    stated_high: float | None
    audited: float  # of hits
    second_opinions: float  # of requests


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The results of one stream as a client sees them: positions of wrong hits, on raw and on audited labels."""

    requests: int
    hits: int
    wrong: frozenset[int]
    wrong_audited: frozenset[int]
    hit: float
    p50_hit_ms: float | None


@contextmanager
def gateway(upstream: int, budget: float, setting: Setting) -> Iterator[tuple[int, int]]:
    """Run a gateway and yield its data port and its admin port."""
    policy = POLICY.format(budget=f"{budget * 100:g}", audit=f"{setting.audit * 100:g}")
    with gateway_of(
        CONFIG,
        policy,
        options=("--log-level", "warning"),
        upstream=upstream,
        embedder=setting.embedder,
        verifier=setting.verifier,
    ) as it:
        yield it.port, it.admin


def run_own_stub(stream: Stream, audited: Labels, budget: float, setting: Setting) -> GatewayResult:
    """Send every question of the stream, in its order, with our own stub as the endpoint."""
    questions = stream.questions[: stream.request_count]
    answers = dict(zip(questions, stream.answers, strict=False))
    with stub(answers) as upstream, gateway(upstream.server_address[1], budget, setting) as (port, admin):
        seen = _ask(stream, questions, port, audited)
        return _figures(budget, seen, admin)


def _ask(stream: Stream, questions: Sequence[str], port: int, audited: Labels) -> ClientResult:
    client, by_name = Client(port), {name_of(question): at for at, question in enumerate(questions)}
    stored: set[int] = set()
    times: list[float] = []
    wrong: set[int] = set()
    read: set[int] = set()
    repeated = 0
    for at, question in enumerate(questions):
        repeated += stream.answers[at] in stored
        started = time.perf_counter()
        text, made_for = client.ask(question)
        took, source = time.perf_counter() - started, by_name[made_for]
        if source == at:
            stored.add(stream.answers[at])
            continue
        times.append(took)
        if text != answer_of(stream.answers[at]):
            wrong.add(at)
        if not audited.same(at, source):
            read.add(at)
    client.close()
    p50 = 1e3 * median(times) if times else None
    hit = (len(times) - len(wrong)) / max(1, repeated)
    return ClientResult(len(questions), len(times), frozenset(wrong), frozenset(read), hit, p50)


def run_evaluation(
    folder: Path, stream: Stream, audited: Labels, budget: float, setting: Setting, python: str = sys.executable
) -> GatewayResult:
    """Run the evaluation's own `cache_eval.py http --mode stream`, with its own stub, as a child process."""
    upstream = free_port()
    with tempfile.TemporaryDirectory() as place, gateway(upstream, budget, setting) as (port, admin):
        dump = Path(place) / "wrong.json"
        command = [
            python, str(folder / "cache_eval.py"), "http", "--url", f"http://127.0.0.1:{port}/v1/chat/completions",
            "--stub-port", str(upstream), "--mode", "stream", "--n", str(stream.request_count), "--dump", str(dump),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the evaluation's own run failed: {done.stderr.strip()[-500:]}")
        said = json.loads(done.stdout)
        places = {question: at for at, question in enumerate(stream.questions)}
        pairs = [(places[each["asked"]], places[each["served"]]) for each in json.loads(dump.read_text("utf-8"))]
        seen = ClientResult(
            requests=said["requests"],
            hits=said["hits"],
            wrong=frozenset(asked for asked, _ in pairs),
            wrong_audited=frozenset(asked for asked, served in pairs if not audited.same(asked, served)),
            hit=said["hit"],
            p50_hit_ms=said["hit_ms_p50"],
        )
        return _figures(budget, seen, admin)


def _figures(budget: float, seen: ClientResult, admin: int) -> GatewayResult:
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=30) as response:
        metrics = samples(response.read().decode())
    positions = np.arange(seen.requests)
    flags, read = (np.isin(positions, list(which)) for which in (seen.wrong, seen.wrong_audited))
    stated = [total(metrics, f"nearhit_wrong_hit_ratio{end}") for end in ("", "_low", "_high")]
    known = [None if value is None or np.isnan(value) else value for value in stated]
    audits = total(metrics, "nearhit_labels_total", source="audit") or 0.0
    return GatewayResult(
        budget=budget,
        requests=seen.requests,
        served=seen.hits / seen.requests,
        error=len(seen.wrong) / seen.requests,
        error_audited=len(seen.wrong_audited) / seen.requests,
        wrong_of_served=len(seen.wrong) / max(1, seen.hits),
        hit=seen.hit,
        p50_hit_ms=seen.p50_hit_ms,
        worst=worst([flags]),
        worst_audited=worst([read]),
        stated=known[0],
        stated_low=known[1],
        stated_high=known[2],
        audited=audits / max(1, seen.hits),
        second_opinions=(total(metrics, "nearhit_second_opinions_total", outcome="asked") or 0.0) / seen.requests,
    )


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return (metric, labels, value) of a scrape."""
    families = text_string_to_metric_families(text)
    return [(each.name, dict(each.labels), float(each.value)) for family in families for each in family.samples]


def total(found: Sequence[tuple[str, dict[str, str], float]], name: str, **labels: str) -> float | None:
    """Return the sum of the samples that have these labels; None if there is none."""
    values = [value for metric, its, value in found if metric == name and labels.items() <= its.items()]
    return sum(values) if values else None
