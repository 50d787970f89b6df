"""`nearhit tune` from pairs to a version in force, with the real models; the training is short."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gateway.features.tuning
from gateway.__main__ import main
from gateway.adapters.onnx.cross_encoder import ABOUT_FILE, OnnxCrossEncoder, load_word_table
from gateway.adapters.onnx.model_files import MODEL, default_model_dir
from gateway.adapters.onnx.tokenizer import PairTokenizer, join_pair
from gateway.cache.verifier_versions import WEIGHT_FILES, VerifierVersions
from gateway.cache.verifiers import WEIGHTS
from gateway.features.tuning import command as tune_command
from gateway.features.tuning import run as tuning_run
from gateway.features.tuning.encoder import Training
from gateway.features.tuning.pairs import LabelledPair
from gateway.features.tuning.reference import anchor_pairs, reference_pairs
from tests.fixtures.build_environment import python as python  # the fixture

MODEL_DIR = default_model_dir() / MODEL
DESKS = {"blue": "billing", "red": "legal"}
THINGS = ("invoice", "contract", "badge", "laptop", "visit", "refund", "login", "parcel", "desk plan", "car park")
RATE = 6e-4  # short questions about two desks need few steps
Tune = Callable[..., tuple[int, dict[str, Any]]]


def desks(count: int, seed: int = 0) -> list[LabelledPair]:
    """Pairs in the language of one company: only its people know which desk is which team."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(1000 * seed, 1000 * seed + count):
        colour = str(random.choice(list(DESKS)))
        same = bool(random.random() < 0.5)
        team = DESKS[colour] if same else str(random.choice([each for each in DESKS.values() if each != DESKS[colour]]))
        topic = f"{random.choice(THINGS)} {number}"
        found.append(LabelledPair(f"{colour} desk, {topic}", f"{team} team, {topic}", same))
    return found


@pytest.fixture
def tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tune:
    document = {
        "version": 1, "data_dir": "var", "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"},
        "backends": {"main": {"adapter": "openai", "url": "http://127.0.0.1:1/v1"}},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(json.dumps(document))

    def tune(pairs: Sequence[LabelledPair] | None = None, *given: str) -> tuple[int, dict[str, Any]]:
        arguments = ["tune", "--config", str(tmp_path / "config.yaml"), "--json", *given]
        if pairs is not None:
            rows = ({"a": pair.stored, "b": pair.asked, "y": int(pair.same)} for pair in pairs)
            (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            arguments += ["--pairs", str(tmp_path / "pairs.jsonl")]
        code = main(arguments)
        return code, json.loads(capsys.readouterr().out)

    return tune


def test_too_few_labels_are_refused(tune: Tune, tmp_path: Path) -> None:
    code, report = tune(desks(200))
    assert code == 0
    assert report["in_force"] is False
    assert report["labels"] == 200
    assert report["why"] == "there are 200 labels of different wordings, expected at least 1000"
    assert VerifierVersions(tmp_path / "var").in_force() is None


def test_without_labels_of_its_own_a_gateway_is_not_tuned(tune: Tune) -> None:
    code, report = tune()
    assert (code, report["in_force"], report["labels"]) == (0, False, 0)


def test_labels_of_one_kind_are_refused(tune: Tune) -> None:
    pairs = [LabelledPair(pair.stored, pair.asked, True) for pair in desks(1100)]
    _, report = tune(pairs)
    assert report["in_force"] is False
    assert "not both kinds" in report["why"]


def test_faults_are_named(tune: Tune, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"a": "x", "b": "y"}\n')
    code, said = tune(None, "--pairs", str(tmp_path / "bad.jsonl"))
    assert code == 1
    assert f"{tmp_path / 'bad.jsonl'}:1: y: expected 1" in said["error"]
    assert tune(None, "--rollback")[1]["error"].endswith("expected a version to roll back")
    assert tune(None, "--list") == (0, {"versions": []})
    assert tune(desks(3), "--list")[0] == 2
    code, said = tune(desks(3), "--build-env", str(tmp_path / "none"))
    assert code == 1
    assert "there is no build environment" in said["error"]


def test_the_float_weights_say_what_the_shipped_graph_says(python: Path) -> None:
    """The int8 graph also rounds its activations, so the logits differ by some tenths."""
    script = Path(__file__).with_name("in_torch.py")
    package = Path(gateway.features.tuning.__file__).parent
    pairs = [(pair.asked, pair.stored) for pair in desks(6)] + [
        ("How do I reset my password?", "What are the steps to reset a password?"),
        ("flights from Oslo to Rome", "flights from Rome to Oslo"),
    ]
    shipped = OnnxCrossEncoder(MODEL_DIR, WEIGHTS)
    job = json.dumps(_job(pairs))
    done = subprocess.run(
        [python, "-I", script, package, WEIGHTS / "cross_encoder.onnx"], input=job, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    logits = [shipped.score(asked, [stored])[0] for asked, stored in pairs]
    assert json.loads(done.stdout) == pytest.approx(logits, abs=0.6)


def _job(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    reader, table = PairTokenizer(MODEL_DIR / "tokenizer.json"), load_word_table(MODEL_DIR)
    rows = []
    for asked, stored in pairs:
        joined = join_pair(reader.ids(asked), reader.ids(stored))
        assert joined is not None
        ids, types = joined
        rows.append({"words": table(ids).tolist(), "second_at": int(types.argmax())})
    return {"rows": rows}


def test_a_run_teaches_the_language_of_a_company_and_can_be_rolled_back(
    python: Path, tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns the language of a company.

    It uses a sixth of the shipped pairs, of both kinds: to read all of them takes longer than the training.
    """
    for name, pairs in (("anchor_pairs", anchor_pairs()), ("reference_pairs", reference_pairs())):
        monkeypatch.setattr(tuning_run, name, partial(list[LabelledPair], pairs[: len(pairs) // 6]))
    monkeypatch.setattr(tune_command, "Training", partial(Training, epochs=1, rate=RATE))
    code, report = tune(desks(1040), "--minutes", "30")
    assert code == 0
    assert set(report) >= {"in_force", "why", "before", "after", "labels", "version", "examples", "candidates"}
    assert set(report["candidates"]) == {"in force", "numbers", "numbers and cross-encoder"}
    assert report["training"]["pairs"] >= 600
    versions = VerifierVersions(tmp_path / "var")
    assert versions.in_force() == report["version"]
    assert report["in_force"], report
    assert report["after"]["served"] >= report["before"]["served"] + 0.01
    assert all(each["served"] == bool(each["y"]) for each in report["examples"]["won"])
    made = tmp_path / "var" / "verifier" / report["version"]
    assert sorted(path.name for path in made.iterdir()) == sorted([*WEIGHT_FILES, "manifest.json"])
    assert json.loads((made / ABOUT_FILE).read_text())["tuned"]["limit_s"] == 30 * 60
    others = desks(120, seed=1)
    right = [
        np.mean([(cross.score(pair.asked, [pair.stored])[0] > 0) == pair.same for pair in others])
        for cross in (OnnxCrossEncoder(MODEL_DIR, WEIGHTS), OnnxCrossEncoder(MODEL_DIR, made))
    ]
    assert right[0] < 0.7
    assert right[1] > 0.9
    assert [each["in_force"] for each in tune(None, "--list")[1]["versions"]] == [True]
    assert tune(None, "--rollback") == (0, {"version": None})
    assert versions.in_force() is None
