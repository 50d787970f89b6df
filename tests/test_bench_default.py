"""Tests of the figures and the tables of `make bench-default`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from bench.default import Pool, Sizes, requests_of, write_page
from bench.default_gateway import METRIC, NO_EXTRAS, all_on, embedded_text, serve_options, token_counter
from bench.default_table import (
    ALL_ON,
    BARE,
    EMBEDDING,
    ENDPOINT,
    EXACT,
    FAR,
    KINDS,
    MANY,
    NEAR,
    ONE,
    SEMANTIC,
    STREAM,
    Cell,
    Measurements,
    Window,
)
from bench.encoder_load import CALM, LOADED, Phase, requests, verdicts
from bench.prompts import LENGTHS, PLAIN_UP_TO, SHARED, Group, Prompt, Wordings, body, far_of, groups_of
from bench.servers import NUMBER, numbered_answer
from bench.servers import STREAM as ASKS_FOR_STREAM
from bench.stages import EMBED, LEARN, REST, STAGES, STORE, VERIFY, Samples, StageCosts, stage_of
from gateway.config.load import load_config
from gateway.config.policy.load import policy_from_text
from gateway.config.policy.single_backend import POLICY
from training.wordings import groups

ROOT = Path(__file__).parents[1]


def test_a_quick_run_measures_every_kind_on_its_path(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.default", "--quick", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "figures.json").read_text())
    cells = {(cell["kind"], cell["system"], cell["connections"]): cell["median"] for cell in said["cells"]}
    assert cells.keys() == {
        (kind, system, connections) for kind in KINDS for system in (False, True) for connections in (ONE, MANY)
    }
    assert all(each["cpu_us"] > 0 and each["x_bare"] > 0 and each["x_embedding"] > 0 for each in cells.values())
    for kind in (EXACT, FAR, STREAM):
        assert cells[kind, False, ONE]["on_path"] == 1, kind
    assert cells[NEAR, False, ONE]["judged"] == 1
    assert cells[FAR, False, ONE]["judged"] == 0
    stages = {each["kind"]: each["us"] for each in said["stages"]}
    assert stages[SEMANTIC][EMBED] > 0 and stages[SEMANTIC][VERIFY] > 0 and stages[FAR][EMBED] > 0
    # On a busy machine a vector of an earlier window can be made in this one, but no exact hit waits for one.
    assert stages[EXACT][EMBED] < stages[FAR][EMBED] / 4
    assert said["facts"]["start_s"]["this"] and said["facts"]["memory_at_the_end_mb"]["this"]


@pytest.fixture(scope="module")
def written() -> list[Wordings]:
    return [Wordings(group.same, group.other) for group in groups()]


@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_have_their_length_and_paraphrases_the_same_rest(length: int, written: list[Wordings]) -> None:
    read, draw = token_counter(), random.Random(1)
    some = list(islice(groups_of(written, length, read, draw), 20))
    far = list(islice(far_of(written, length, read, draw), 20))
    assert len(some) == len(far) == 20
    for prompt in [*(group.stored for group in some), *far]:
        counted = sum(read(part) - 2 for part in prompt.text.split(".")) if length >= SHARED else read(prompt.text)
        assert 0.7 * length <= counted <= 1.3 * length + 4, prompt
    for group in some:
        assert group.stored.number == group.paraphrase.number != group.near.number
        assert group.stored.text != group.paraphrase.text != group.near.text
    if length >= SHARED:
        contexts = {group.stored.text.partition("\n")[2] for group in some}
        assert len(contexts) == 1
        assert all(read(embedded_text(group.stored)) <= 2 * PLAIN_UP_TO for group in some)
    assert not {prompt.number for prompt in far} & {
        each.number for group in some for each in (group.stored, group.near)
    }


def test_the_endpoint_answers_by_number() -> None:
    asked = body(Prompt("How?", 41), system=True, stream=True)
    found = NUMBER.search(asked)
    assert found and int(found[1]) == 41 and ASKS_FOR_STREAM.search(asked)
    assert numbered_answer(41) != numbered_answer(42)
    first, second = (requests_of([Prompt("How?", 1)], scene)[0] for scene in (1, 2))
    assert b'"n": 1000001' in first and b'"n": 2000001' in second
    assert b"Bearer scene-1\r\n" in first


def test_no_two_windows_ask_the_same_question() -> None:
    sizes = Sizes(one=4, many=12, streams=6)
    prompts = [Prompt(str(number), number) for number in range(200)]
    pool = Pool([Group(*prompts[at : at + 3]) for at in range(0, 60, 3)], 16, prompts[100:])
    asked = [pool.prompts(kind, count, sizes) for kind in (SEMANTIC, NEAR, FAR, STREAM) for count in (ONE, MANY)]
    assert [len(each) for each in asked] == [4, 12, 4, 12, 4, 12, 2, 6]
    assert len({prompt for each in asked for prompt in each}) == sum(map(len, asked))
    assert not Pool(pool.groups, 7, pool.far).measures(SEMANTIC)


def test_a_metric_has_a_name_labels_and_a_value() -> None:
    text = '# HELP nearhit_x y\nnearhit_x{a="b",c="d"} 3.0\nnearhit_late_vectors_total 2\n'
    assert [found.groups() for found in METRIC.finditer(text)] == [
        ("nearhit_x", 'a="b",c="d"', "3.0"),
        ("nearhit_late_vectors_total", None, "2"),
    ]


def test_a_gateway_with_all_on_has_the_shipped_policy(tmp_path: Path) -> None:
    assert serve_options(tmp_path, "http://127.0.0.1:7/v1", NO_EXTRAS) == ["--upstream", "http://127.0.0.1:7/v1"]
    with all_on(7005) as extras:
        _, path = serve_options(tmp_path, "http://127.0.0.1:7/v1", extras)
        config = load_config(Path(path), {})
    assert config.server.tls and config.server.cors.origins and config.telemetry.traces.sample == 0.01
    assert (tmp_path / "policies" / "default.yaml").read_bytes() == POLICY
    policy_from_text(POLICY, "default.yaml", config)


def test_all_on_is_compared_round_by_round() -> None:
    measured = Measurements(["this", ALL_ON])
    for cpu_us in (1000, 0, 4000, 2000):
        measured.add(Cell(FAR, 30, False, ONE, "this"), Window(12, cpu_us))
        measured.add(Cell(FAR, 30, False, ONE, ALL_ON), Window(12, 1.1 * cpu_us))
    assert measured.ratio_lines(ALL_ON)[2:] == ["| miss far from everything | 30 | no | 1.10 |  |"]


def test_questions_of_the_load_differ_and_have_their_length() -> None:
    asked = list(requests(100, 0, 50, random.Random(1)))
    assert len({text for text, _ in asked}) == len({request for _, request in asked}) == 50
    assert all(80 <= token_counter()(text) <= 140 for text, _ in asked[:5])


def test_a_load_without_an_answer_or_with_slow_hits_misses_its_marks() -> None:
    calm, loaded = Phase(CALM, 2.0), Phase(LOADED, 2.0)
    for took in (0.001, 0.002, 0.003):
        loaded.record(took, hit=True)
        loaded.record(2 * took, hit=False)
    assert [met for _, _, met in verdicts([calm, loaded])] == [True, True, True]
    loaded.record(None, hit=False)
    loaded.record(0.1, hit=True)
    assert [met for _, _, met in verdicts([calm, loaded])] == [False, False, True]
    loaded.left_out["lookup"] = 7
    assert loaded.row() == "| 3 | 4 | 1 | 3.0 | 100.0 | 4.0 | 6.0 | 0 | lookup 7 |"


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        (["gateway.adapters.redis.connection", "gateway.cli.serve"], STORE),
        (["gateway.context", "gateway.cache.features.words", "gateway.steps.semantic_lookup"], VERIFY),
        (["gateway.cache.lexical", "gateway.cache.answer_comparer"], LEARN),
        (["gateway.cache.threshold.ledger", "gateway.steps.semantic_lookup"], LEARN),
        (["gateway.upstream.upstream", "gateway.steps.store_response"], REST),
        (["gateway.context"], REST),
    ],
)
def test_the_innermost_module_decides_the_stage_of_a_sample(stack: list[str], stage: str) -> None:
    assert stage_of(stack) == stage


def samples(seconds: float, stacks: list[tuple[list[str], int]]) -> Samples:
    threads = {"7": "MainThread", "8": "embedder", "9": "nearhit-verifier_0", "10": "uvloop_1"}
    return Samples.read({"seconds": seconds, "cpu_s": 0.1, "period_s": 0.001, "stacks": stacks, "threads": threads})


def test_stages_add_up_to_the_process_without_what_an_idle_gateway_does() -> None:
    redis, waiting = ["gateway.adapters.redis.connection"], ["gateway.cli.serve"]
    idle = samples(1.0, [(redis, 10), (waiting, 900)])
    staged = StageCosts()
    busy = samples(2.0, [(redis, 60), (["gateway.cache.verifiers"], 20), (waiting, 1000)])
    staged.add(busy, idle, {7: 5.0, 8: 0.3, 9: 0.2, 10: 0.01}, 100)
    micros = staged.micros(1000.0)
    assert micros == pytest.approx(
        dict.fromkeys(STAGES, 0.0) | {STORE: 400, VERIFY: 200 + 2000, EMBED: 3000, REST: 1000 - 600 + 100}
    )
    assert sum(staged.micros(300.0).values()) == pytest.approx(300 + 5100)


def test_a_row_has_ratios_to_what_ran_in_the_same_round(tmp_path: Path) -> None:
    measured = Measurements(["this", "before"])
    measured.facts["stage_tokens"] = 30
    starts = {"start_s": [3.0, 9.0, 4.0], "memory_at_the_start_mb": [210.0], "memory_at_the_end_mb": [240.0, 250.0]}
    measured.facts |= {name: {"this": values, "before": values} for name, values in starts.items()}
    for cpu_us, bare, alone in ((6000, 100, 3000), (9000, 300, 3000), (6000, 50, 2000)):
        measured.add(Cell(FAR, 30, False, ONE, "this"), Window(12, cpu_us, 5.0, 0.0, 1000, on_path=0.5))
        measured.add(Cell(FAR, 30, False, ONE, "before"), Window(12, 2 * cpu_us, 7.0, 0.0, 1000))
        measured.add(Cell(FAR, 30, True, ONE, "this"), Window(12, 1.5 * cpu_us, 5.0, 0.0, 1000))
        measured.add(Cell(FAR, 30, False, MANY, "this"), Window(48, cpu_us / 2, 5.0, 321.0, 900, late=2))
        measured.add(Cell(FAR, 30, False, ONE, server=EMBEDDING), Window(8, alone))
        measured.add(Cell("", 30, False, ONE, server=BARE), Window(400, bare))
        measured.add(Cell("", 30, False, MANY, server=BARE), Window(400, bare))
        measured.add(Cell("", 30, False, ONE, server=ENDPOINT), Window(400, 1.0, 0.5))
    measured.staged[FAR, "this"] = StageCosts(10, {STORE: 0.001}, {"embedder": 0.03})
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- default {name} -->\nold\n<!-- end -->\n" for name in ("table", "stages", "start")))
    write_page(page, measured)
    lines = page.read_text().splitlines()
    row = f"| {FAR} @this | 30 | 1.50 | 6000 | 1000 | 3.00 | 60.0 | 4.50 | 3000 | 900 | 1.50 | 30.0 | 321 | 0.50 |  |"
    assert row in lines
    assert f"| {FAR} @this | 3000 | 0 | 0 | 0 | 100 | 900 | 0 |" in lines
    assert "A start took 4.0 s. The gateway then had 210 MB, and 245 MB after a round. @before" in lines
    assert list(measured.cells_off_path()) == [f"{FAR} @this, 30 tokens, 1 connections: 0.50 on its path"]
    assert measured.late_embeddings() == {"this": 6, "before": 0}
    assert measured.as_dict()["cells"][0]["median"]["x_before"] == 0.5
