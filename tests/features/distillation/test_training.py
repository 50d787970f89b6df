"""The trainer in the build environment, and a student of a toy corpus through all that serves it."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import InferInput, model_config_pb2
from tritonclient.grpc.aio import InferenceServerClient

import gateway.features.distillation
from gateway.__main__ import main
from gateway.adapters.onnx.model_dir import ModelDir
from gateway.features.demo.errors import TritonUnavailable
from gateway.features.demo.triton_environment import ensure_triton
from gateway.features.demo.triton_server import TritonPorts, TritonServer
from gateway.features.distillation.served.classifier import UNSURE, Classifier
from gateway.features.onnx_backend.text_models import OnnxTextClassifier as Reader
from tests.fixtures.build_environment import BUILD_ENV
from tests.fixtures.triton import CHECKOUT, free_ports


@pytest.fixture(scope="module")
def said(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script, trainer = Path(__file__).with_name("in_torch.py"), Path(gateway.features.distillation.__file__).parent
    folder = tmp_path_factory.mktemp("torch")
    done = subprocess.run([python, "-I", script, trainer, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_the_loss_is_that_of_a_worked_example(said: dict[str, Any]) -> None:
    """Row 1: alpha * CE + (1 - alpha) * T^2 * KL; row 2, of which the teacher told nothing: CE. Their mean."""
    hard = math.log(1 + math.exp(-1.0))
    teacher, student = 1 / (1 + math.exp(1.0)), 1 / (1 + math.exp(-0.5))  # of the first label, both softened by 2
    kl = teacher * math.log(teacher / student) + (1 - teacher) * math.log((1 - teacher) / (1 - student))
    assert said["loss"] == pytest.approx((0.25 * hard + 0.75 * 4 * kl + hard) / 2, rel=1e-5)


def test_pruning_removes_the_units_that_matter_least(said: dict[str, Any]) -> None:
    assert said["units"] == 8 - 3, "a share of 0.4 of 8 units, rounded down"
    assert said["pruned_equal"], "the three units that changed no answer are gone"
    assert said["shapes"] == [[20, 8], [4, 8], [4], [3, 4], [3]], "the epochs that follow train the units that stay"


def test_without_vectors_for_unused_tokens_the_answers_are_the_same(said: dict[str, Any]) -> None:
    assert said["slim_rows"] == 5 + 1, "the used tokens, and one row for all others"
    assert said["slim_equal"]
    assert said["unknown_equal"], "an unused token says nothing"
    assert said["slim_served"] < 0.1


def test_a_run_that_was_killed_twice_ends_with_the_same_weights(said: dict[str, Any]) -> None:
    assert said["begun"] == 5
    assert said["equal"]


def test_a_teacher_that_was_killed_while_it_was_tuned_ends_with_the_same_weights(said: dict[str, Any]) -> None:
    assert said["tuned_begun"] == 1
    assert said["tuned_equal"]
    assert said["tuned_right"] == 1.0  # its head alone, on layers that know nothing: 0.25
    assert said["frozen_equal"], "the layers from below, and the token vectors, stay as they were published"


def test_every_precision_says_what_the_model_says(said: dict[str, Any]) -> None:
    assert said["strays"]["fp32"] < 1e-5
    assert said["strays"]["fp16"] < 0.01
    assert said["strays"]["int8"] < 0.1
    assert said["bytes"]["int8"] < said["bytes"]["fp16"] < said["bytes"]["fp32"]


@pytest.fixture(scope="module")
def entry(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("distilled")
    places = {"lost": ("card", "purse", "key"), "price": ("cost", "fee", "charge")}
    lines = [
        json.dumps({"text": frame.format(word), "label": label})
        for label, words in places.items()
        for word in words
        for frame in ("my {} please", "what of the {}", "about a {} today", "the {}", "one {} more", "any {} now")
    ]
    (home / "rows.jsonl").write_text("\n".join(lines))
    where = ["--repository", home / "models", "--work", home / "work", "--build-env", BUILD_ENV]
    given = ["--name", "toy", "--epochs", "5", "--hold-out", "0.3", "--agreement", "0", "--json"]
    form = ["--precision", "fp16", "--tensorrt", "--tokens", "used", "--prune", "0.5", "--prune-epochs", "2"]
    assert main(["distill", str(home / "rows.jsonl"), *map(str, where), *given, *form]) == 0
    return home / "models" / "toy" / "1"


def test_a_toy_corpus_is_learnt_and_reported(entry: Path) -> None:
    report = json.loads((entry / "report.json").read_text())
    assert report["accuracy"]["share"] >= 0.8
    assert report["rows"] + report["held_out"] == 36
    assert report["models"]["student"]["bytes"] < report["models"]["student"]["fp32_bytes"] < 1e6, "it is slim"
    assert (report["hidden"], report["tokens"]) == (128, "used")
    assert report["used_tokens"] < 100
    assert Classifier(entry).classify_text("the card").text == "lost"
    about = json.loads((entry / "config.json").read_text())
    (entry / "config.json").write_text(json.dumps(about | {"accept_above": 0.999999}))
    assert Classifier(entry).classify_text("hello").text == UNSURE
    (entry / "config.json").write_text(json.dumps(about))


def test_a_version_that_is_worse_than_the_newest_is_written_by_force_alone(
    entry: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(entry.parent, tmp_path / "models" / "toy")
    rows = [json.loads(line) for line in (entry.parents[2] / "rows.jsonl").read_text().splitlines()]
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, rows)))
    others = {"lost": "price", "price": "lost"}
    wrong = [{"text": f"{row['text']} again", "label": others[row["label"]]} for row in rows]
    (tmp_path / "wrong.jsonl").write_text("\n".join(map(json.dumps, wrong)))
    where = ["--repository", tmp_path / "models", "--work", tmp_path / "work", "--build-env", BUILD_ENV]
    given = ["--held-out", tmp_path / "held.jsonl", "--name", "toy", "--epochs", "3", "--agreement", "0", "--json"]
    command = ["distill", str(tmp_path / "wrong.jsonl"), *map(str, [*where, *given])]
    assert main(command) == 1
    refused = json.loads(capsys.readouterr().out)
    assert refused["entry"] is None
    gate = refused["report"]["gate"]
    assert (gate["passed"], gate["version"], gate["rows"]) == (False, 1, len(rows))
    assert gate["before"] > gate["after"]
    assert [each.name for each in (tmp_path / "models" / "toy").iterdir() if each.is_dir()] == ["1"]
    assert main([*command, "--force"]) == 0
    assert json.loads(capsys.readouterr().out)["entry"] == str(tmp_path / "models" / "toy" / "2")


def test_the_entry_is_one_that_triton_and_the_gateway_itself_can_load(entry: Path) -> None:
    config = text_format.Parse((entry.parent / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert (config.name, config.backend) == ("toy", "python")
    graph = text_format.Parse(
        (entry.parents[1] / "toy-graph" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
    )
    assert (graph.name, graph.backend) == ("toy-graph", "onnxruntime")
    (accelerator,) = graph.optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, accelerator.parameters["precision_mode"]) == ("tensorrt", "FP16")
    assert {each.name for each in (entry / "model.py", entry / "model.onnx", entry / "tokenizer.json")} <= {
        each.name for each in entry.iterdir()
    }
    assert Reader(ModelDir(entry), 1)


def repository_of(entry: Path, home: Path) -> Path:
    """`toy`, which asks `toy-graph`; that one by Triton's python backend, since the wheel has no other and nobody here
    a GPU; and `plain`, which has its own graph."""
    shutil.copytree(entry.parents[1], home)
    graph = home / "toy-graph"
    config = (graph / "config.pbtxt").read_text()
    config = config[: config.index("# onnxruntime builds")].replace("KIND_GPU", "KIND_CPU")
    (graph / "config.pbtxt").write_text(config.replace('"onnxruntime"', '"python"'))
    (graph / "1" / "model.py").write_bytes(Path(__file__).with_name("graph_in_python.py").read_bytes())
    shutil.copytree(home / "toy", home / "plain")
    about = json.loads((home / "plain" / "1" / "config.json").read_text())
    assert about.pop("graph") == "toy-graph"
    (home / "plain" / "1" / "config.json").write_text(json.dumps(about))
    config = (home / "plain" / "config.pbtxt").read_text()
    (home / "plain" / "config.pbtxt").write_text(config.replace('"toy"', '"plain"').replace("count: 4", "count: 1"))
    return home


async def test_triton_serves_it_with_its_own_graph_and_with_one_beside_it(entry: Path, tmp_path: Path) -> None:
    try:
        environment = ensure_triton(CHECKOUT / ".venv-triton", print)
    except TritonUnavailable as reason:
        pytest.skip(str(reason))
    repository = repository_of(entry, tmp_path / "models")
    grpc, http, metrics = free_ports(3)
    server = await TritonServer.start(environment, repository, tmp_path, TritonPorts(grpc, http, metrics))
    try:
        given = InferInput("text_input", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"the card"], dtype=object))
        async with InferenceServerClient(f"127.0.0.1:{grpc}") as client:
            said = {name: await client.infer(name, [given]) for name in ("toy", "plain")}
        odds = [float(each.as_numpy("confidence")[0]) for each in said.values()]
        assert [each.as_numpy("text_output").tolist() for each in said.values()] == [[b"lost"]] * 2
        assert 0.5 < min(odds) <= 1.0
        assert odds[0] == pytest.approx(odds[1], abs=0.01)  # fp32 with empty tokens after it, and fp16
    finally:
        await server.stop()


def test_without_an_environment_the_command_that_makes_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(40))
    (tmp_path / "a.csv").write_text("text,label\n" + rows)
    assert main(["distill", str(tmp_path / "a.csv"), "--build-env", str(tmp_path / "none")]) == 1
    said = capsys.readouterr().err
    assert "there is no build environment at" in said
    assert "`nearhit distill --prepare --build-env" in said
