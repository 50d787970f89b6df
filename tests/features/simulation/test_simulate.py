"""What is forecast of another policy is what then happens, and what cannot be known is said."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.config import Config
from gateway.config.policy.load import policy_from_text
from gateway.features.simulation.report import as_text
from gateway.features.simulation.runner import SimulationRunner
from gateway.features.simulation.simulation import Simulation
from gateway.features.simulation.worker_process import SimulationJob, build_job, job_response, run_job, unpack_job
from gateway.steps.traffic_log.format import MAGIC, _frame
from gateway.steps.traffic_log.reader import TrafficUnreadable, read_traffic
from gateway.steps.traffic_log.segments import segments_in
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

POLICY = """
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{{cache}}}
    route: {{{route}}}
    record: {record}
"""
HOUR = "exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9}"
TIERS = "light: light, large: large, escalate_above: 0.5"
ASKED = [
    "how do I change the address of my account",
    "how do I change the address of my account now",  # 0.94 to the one before
    "how do I change the colour of my account",  # 0.89
    "why was my card declined at the till yesterday",
    "Prove step by step why the algorithm terminates, and derive its complexity in detail with all constants.",
]
# Which question, by whom, minutes after the one before.
DAY = [
    (0, "a", 0), (0, "a", 1), (1, "a", 1), (2, "a", 1), (0, "b", 5), (3, "a", 10), (4, "a", 10), (1, "a", 10),
    (3, "b", 2), (0, "a", 25), (2, "a", 5), (4, "a", 1), (1, "b", 4), (3, "a", 40), (0, "a", 10), (4, "b", 3),
    (1, "a", 20), (2, "b", 9),
]  # fmt: skip


def policy(cache: str = HOUR, route: str = TIERS, record: str = "on") -> str:
    return POLICY.format(cache=cache, route=route, record=record)


def config(folder: Path, light: Upstream, large: Upstream, **sections: Any) -> Config:
    price = {"input_per_million": 1.0, "output_per_million": 2.0}
    dear = {"input_per_million": 10.0, "output_per_million": 20.0}
    backends = {
        "light": {"adapter": "openai", "url": light.url, "price": price},
        "large": {"adapter": "openai", "url": large.url, "price": dear},
    }
    return config_of(folder, backends, **sections)


async def played(settings: Config, text: str) -> list[tuple[str, str | None]]:
    """The day for real -> verdict and backend of each request."""
    clock, became = FakeClock(), list[tuple[str, str | None]]()
    async with gateway_of(settings, text, clock=clock) as served:
        for question, who, minutes in DAY:
            clock.advance(60.0 * minutes)
            answer = await served.chat(ASKED[question], headers={"authorization": f"Bearer {who}"})
            became.append((parse_verdict(answer.cache_status), answer.headers.get("x-nearhit-backend")))
            parts = served.gateway.parts  # what a request leaves to be done is over within a minute
            await until(lambda parts=parts: not parts.background and parts.space.comparisons.idle)
    return became


def parse_verdict(cache_status: str) -> str:
    return cache_status.partition("detail=")[2].partition(";")[0] if "; hit;" in cache_status else "miss"


def simulated(settings: Config, present: str, new: str) -> Simulation:
    both = [policy_from_text(text, "policy.yaml", settings) for text in (present, new)]
    where = str(settings.data_dir / "traffic")
    return run_job(build_job(settings, both[0], both[1], where, 0.0, "hash/384/v2"))


@pytest.mark.parametrize(
    "new",
    [
        policy(),
        policy("exact: {ttl: 5m}, semantic: {ttl: 5m, min_similarity: 0.9}"),
        policy("exact: {ttl: 3h}, semantic: {ttl: 3h, min_similarity: 0.9}"),
        policy("exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.85}"),
        policy("exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.98}"),
        policy("exact: {ttl: 10m}, stale_while_revalidate: 1h"),
        policy(f"{HOUR}, share: global"),
        policy(f"{HOUR}, admit: {{after: 2}}"),
        policy("semantic: {ttl: 1h, min_similarity: 0.9}"),
        policy(route="light: light, large: large, escalate_above: 0.1"),
        policy(route="light: light, large: large, large_share: 25%"),
        policy(route="backend: large"),
    ],
)
async def test_the_forecast_is_what_then_happens(new: str, light: Upstream, large: Upstream, tmp_path: Path) -> None:
    recorded = config(tmp_path / "recorded", light, large)
    before = await played(recorded, policy())
    simulation = simulated(recorded, policy(), new)
    really = await played(config(tmp_path / "again", light, large), new)
    assert [each.verdict for each in simulation.present.outcomes] == [verdict for verdict, _ in before]
    assert [each.verdict for each in simulation.new.outcomes] == [verdict for verdict, _ in really]
    for said, (verdict, backend) in zip(simulation.new.outcomes, really, strict=True):
        if verdict == "miss":
            assert said.backend == backend


async def test_another_threshold_is_held_against_the_opinions_of_then(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """Nothing but embeddings and opinions was kept, and the learned verifier's threshold moves with the promise."""
    strict, loose = (f"semantic: {{ttl: 1d, max_wrong_hits: {share}}}" for share in ("0.1%", "30%"))
    recorded = config(tmp_path / "recorded", light, large)
    before = await played(recorded, policy(strict))
    really = await played(config(tmp_path / "again", light, large), policy(loose))
    simulation = simulated(recorded, policy(strict), policy(loose))
    assert [each.verdict for each in simulation.present.outcomes] == [verdict for verdict, _ in before]
    new = simulation.new.side
    hits = sum(verdict != "miss" for verdict, _ in really) / len(DAY)
    assert new.hit_rate <= hits <= new.hit_rate_high
    assert new.wrong is not None
    assert 0.0 <= new.wrong.low <= new.wrong.expected <= new.wrong.high


async def test_what_was_never_judged_is_counted_at_the_utmost_alone_unless_prompts_are_kept(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    exact, both = "exact: {ttl: 1h}", "semantic: {ttl: 1h, max_wrong_hits: 50%}"
    sides = []
    for record in ("on", "{prompts: on}"):
        recorded = config(tmp_path / record.strip("{}"), light, large)
        # With another threshold in force the embeddings are there, and no opinion of a verifier.
        await played(recorded, policy(f"{exact}, semantic: {{ttl: 1h, min_similarity: 1.0}}", record=record))
        sides.append(simulated(recorded, policy(exact), policy(both)).new.side)
    blind, told = sides
    assert blind.hit_rate < blind.hit_rate_high
    assert blind.hit_rate < told.hit_rate <= blind.hit_rate_high
    assert told.unjudged == 0


async def recorded_day(light: Upstream, large: Upstream, folder: Path, **sections: Any) -> Config:
    settings = config(folder, light, large, **sections)
    await played(settings, policy())
    return settings


async def test_it_is_told_as_a_table_and_as_json(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    settings = await recorded_day(light, large, tmp_path)
    said = simulated(settings, policy(), policy(route="backend: large")).as_json()
    assert json.loads(json.dumps(said)) == said
    assert said["traffic"]["requests"] == len(DAY)
    assert said["present"]["hit_rate"] == pytest.approx(said["recorded"]["hit_rate"])
    assert said["new"]["cost_dollars"] > said["present"]["cost_dollars"]
    assert said["new"]["tiers"] == {}
    assert said["changed"]["examples"][0]["prompt"] is None
    assert (said["present"]["unknown_latency"], said["present"]["unknown_cost"]) == (0, 0)
    text = as_text(said)
    for word in ("hit rate", "p95", "cost", "would get another outcome, such as", "Not known, or not replayed"):
        assert word in text


async def test_no_change_is_told_of_figures_that_are_not_of_the_same_requests(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """No answer of a backend that was never asked is known: what would go there is left out of the latencies."""
    settings = config(tmp_path, light, large)
    await played(settings, policy(route="backend: light"))
    said = simulated(settings, policy(route="backend: light"), policy(route="backend: large")).as_json()
    assert said["present"]["unknown_latency"] == 0 < said["new"]["unknown_latency"]
    rows = {line.partition("  ")[0]: line.split() for line in as_text(said).splitlines()}
    for name in ("p50", "p95", "p99"):
        assert "?" in rows[name]
    assert "?" not in rows["hit rate"]


# The command


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text(policy())
    (tmp_path / "config.yaml").write_text(
        "version: 1\nembedder: {adapter: hash}\nbackends:\n"
        "  light: {adapter: openai, url: http://127.0.0.1:9/v1}\n  large: {adapter: openai, url: http://127.0.0.1:9/v1}\n"
    )
    return tmp_path


def run(home: Path, *arguments: str) -> int:
    return main(["simulate", "--config", str(home / "config.yaml"), *arguments])


async def test_the_command_prints_both(
    home: Path, light: Upstream, large: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = await recorded_day(light, large, home / "var")
    (home / "new.yaml").write_text(policy(route="backend: large"))
    where = str(settings.data_dir / "traffic")
    assert await asyncio.to_thread(run, home, "--policy", str(home / "new.yaml"), "--traffic", where, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    assert said["new"]["verdicts"] == said["present"]["verdicts"]
    (home / "new.yaml").write_text("version: 1\nroutes: [{name: x, match: {}, route: {backend: nobody}}]\n")
    assert await asyncio.to_thread(run, home, "--policy", str(home / "new.yaml"), "--traffic", where) == 1
    assert "new.yaml:2: routes[0].route.backend" in capsys.readouterr().err


@pytest.mark.parametrize("wanted", ["last-24h", "nowhere", "last-x"])
def test_without_traffic_it_says_so(home: Path, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(home, "--policy", str(home / "policies"), "--traffic", wanted) == 1
    assert capsys.readouterr().err.count("\n") == 1


# Faults of the log


async def test_traffic_of_another_embedding_model_is_refused(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    settings = await recorded_day(light, large, tmp_path)
    present = policy_from_text(policy(), "policy.yaml", settings)
    job = build_job(settings, present, present, str(tmp_path / "traffic"), 0.0, "another/model")
    with pytest.raises(TrafficUnreadable, match="was embedded by hash/384/v2, and the configuration has another/model"):
        run_job(job)
    assert unpack_job(job.packed()) == job
    assert json.loads(job_response(job))["error"].endswith("expected traffic of the model in use")


async def test_traffic_of_another_policy_is_replayed_and_said(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    settings = await recorded_day(light, large, tmp_path)
    simulation = simulated(settings, policy("exact: {ttl: 1h}"), policy())
    assert any(note.startswith(f"{len(DAY)} requests came under other policies (") for note in simulation.notes)
    assert [note for note in simulation.notes if "the conversation of the entry that was served" in note]
    without = simulated(settings, policy("exact: {ttl: 1h}"), policy("exact: {ttl: 1h}"))
    assert not [note for note in without.notes if "the conversation" in note]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data[:40] + b"\xff" + data[41:], "is damaged at its beginning"),
        (lambda _: _frame([MAGIC, 2, []]), "has version 2 of the traffic log format, expected 1"),
        (lambda _: _frame([MAGIC, 1, [1, 2]]), "has a heading of an unexpected form"),
        (lambda _: _frame({"a": 1}), "is not a segment of a traffic log"),
    ],
)
async def test_a_segment_that_cannot_be_read_is_named(
    change: Any, sentence: str, light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    settings = await recorded_day(light, large, tmp_path, traffic={"flush": "1h"})
    (path,) = segments_in(settings.data_dir / "traffic")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TrafficUnreadable, match=f"{path.name} {sentence}"):
        read_traffic(str(path), tmp_path, 0.0)


WRITER = """
import sys
from pathlib import Path
from gateway.config.schema import TrafficConfig
from gateway.steps.traffic_log.reader import read_traffic
from gateway.steps.traffic_log.segments import Segments
traffic = read_traffic(sys.argv[1], Path("."), 0.0)
segments = Segments(Path(sys.argv[2]), TrafficConfig())
while True:
    segments.append(traffic.heading, traffic.requests)
    print("written", flush=True)
"""


async def test_a_writer_that_is_killed_leaves_whole_batches(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    settings = await recorded_day(light, large, tmp_path / "day")
    command = [sys.executable, "-c", WRITER, str(settings.data_dir / "traffic"), str(tmp_path / "killed")]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(20):
        assert await process.stdout.readline()
    process.kill()
    await process.wait()
    traffic = read_traffic(str(tmp_path / "killed"), tmp_path, 0.0)
    assert len(traffic.requests) >= 20 * len(DAY)
    assert len(traffic.requests) % len(DAY) == 0


# The admin port


async def tried(served: Served, text: str, query: str = "") -> tuple[int, dict[str, Any]]:
    async with served.session.post(f"{served.admin_url}/admin/simulate{query}", data=text) as response:
        return response.status, await response.json()


async def test_the_admin_port_tries_a_policy(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, light, large), policy()) as served:
        status, said = await tried(served, policy())
        assert (status, said["ok"]) == (422, False)
        assert said["error"].startswith("no traffic was recorded in ")
        for question in (0, 0, 1, 4):
            await served.chat(ASKED[question])
        status, said = await tried(served, policy(route="backend: large"), "?traffic=last-1h")
        assert status == 200
        assert said["present"]["verdicts"] == {"exact": 0.25, "miss": 0.5, "semantic": 0.25}
        assert said["changed"]["requests"] >= 1  # where another backend answers
        status, said = await tried(served, "version: 1\nroutes: []\n")
        assert status == 422
        assert said["faults"][0]["path"] == "routes"
        assert (await tried(served, policy(), "?traffic=/etc"))[0] == 400
        assert served.gateway.policy.hash == policy_from_text(policy(), "policy.yaml", served.gateway.config).hash


async def test_one_at_a_time_and_not_for_long(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    settings = config(tmp_path, light, large, traffic={"simulate_timeout": "1ms"})
    async with gateway_of(settings, policy()) as served:
        await served.chat(ASKED[0])
        status, said = await tried(served, policy())
        assert status == 504
        assert "traffic.simulate_timeout" in said["error"]

        held, arrived = asyncio.Event(), asyncio.Event()

        async def flush() -> None:
            arrived.set()
            await held.wait()

        trial = SimulationRunner(replaced(settings), flush, lambda: "hash/384/v2", served.gateway.parts.clock.wall)
        now = served.gateway.policy
        first = asyncio.create_task(trial.of(now, now, None))
        await arrived.wait()
        with pytest.raises(Exception, match="one at a time"):
            await trial.of(now, now, None)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        held.set()
        assert not trial.running


def replaced(settings: Config) -> Config:
    return settings.model_copy(update={"traffic": settings.traffic.model_copy(update={"simulate_timeout": 60.0})})


def test_a_job_is_plain(tmp_path: Path) -> None:
    job = SimulationJob(
        "last-1h",
        1.0,
        str(tmp_path),
        None,
        "learned",
        1,
        {"a": (1.0, 2.0)},
        {"a": "openai"},
        ("x",),
        (("p", b"x"),),
        (("n", b"y"),),
    )
    assert unpack_job(replace(job).packed()) == job
