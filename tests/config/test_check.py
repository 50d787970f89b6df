"""What `nearhit check` finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.policy.check import check
from tests.config.documents import rule, text

CONFIG = "version: 1\nbackends:\n  main: {adapter: openai, url: https://host/v1}\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    Path("policies").mkdir()
    Path("policies/default.yaml").write_text(text(rule("default")))
    return Path("config.yaml")


def test_without_a_path_the_configuration_and_its_policies_are_checked(place: Path) -> None:
    result = check([], place, {})
    assert (result.faults, result.files) == ((), ("config.yaml", "policies/default.yaml"))


def test_faults_of_configuration_and_policies_come_at_once(place: Path) -> None:
    place.write_text(CONFIG + "stor: {}\n")
    Path("policies/a.yaml").write_text(text(rule("one", "{modl: x}").replace("main", "mian")))
    assert [(fault.file, fault.line) for fault in check([], place, {}).faults] == [
        ("config.yaml", 4), ("policies/a.yaml", 4), ("policies/a.yaml", 5),
    ]  # fmt: skip


def test_a_file_before_the_default_needs_none_of_its_own(place: Path) -> None:
    part = Path("policies/a.yaml")
    part.write_text(text(rule("one", "{model: x}")))
    assert check([part], place, {}).faults == ()
    alone = Path("alone.yaml")
    alone.write_text(text(rule("one", "{model: x}")))
    assert "the last rule must be the default" in str(check([alone], place, {}).faults[0])


def test_a_configuration_is_known_by_what_it_says(place: Path) -> None:
    other = Path("staging.yaml")
    other.write_text(CONFIG + "stor: {}\n")
    (fault,) = check([other], place, {}).faults
    assert (fault.file, fault.path) == ("staging.yaml", ("stor",))


def test_without_a_configuration_backends_are_not_held_against_any(place: Path) -> None:
    assert check([Path("policies")], Path("none.yaml"), {}).faults == ()


def test_a_policy_with_the_other_ending_is_not_silently_left_out(place: Path) -> None:
    Path("policies/a.yml").write_text("")
    (warning,) = check([], place, {}).warnings
    assert str(warning) == (
        "policies/a.yml:1: (document): the file is not in force, expected a name that ends in .yaml"
    )


def test_a_missing_path_is_a_fault(place: Path) -> None:
    (fault,) = check([Path("gone.yaml")], place, {}).faults
    assert str(fault) == "gone.yaml:1: (document): does not exist, expected a policy file"


def test_the_result_is_readable_by_machines(place: Path) -> None:
    place.write_text(CONFIG + "stor: {}\n")
    assert check([place], place, {}).as_json() == {
        "ok": False,
        "files": ["config.yaml"],
        "faults": [
            {
                "file": "config.yaml",
                "line": 4,
                "path": "stor",
                "message": "unknown key, did you mean 'store'? expected one of: version, server, data_dir, store, "
                "embedder, index, verifier, learning, tune, light, auth, audit, jobs, traffic, telemetry, backends, "
                "policies",
            }
        ],
        "warnings": [],
    }


@pytest.mark.parametrize(
    ("embedder", "warned"),
    [
        ("{adapter: onnx, migrate_from: {}}", True),
        ("{model: a, migrate_from: {model: a, threads: 2}}", True),
        ("{adapter: hash, migrate_from: {adapter: hash, model: b}}", True),
        ("{model: a, migrate_from: {model: b}}", False),
        ("{model: a, model_dir: new, migrate_from: {model: a, model_dir: old}}", False),
        ("{adapter: onnx, migrate_from: {adapter: hash}}", False),
    ],
)
def test_a_migration_from_the_model_in_use_is_warned_of(place: Path, embedder: str, warned: bool) -> None:
    place.write_text(CONFIG + f"embedder: {embedder}\n")
    result = check([], place, {})
    sentence = (
        "config.yaml:4: embedder.migrate_from: names the model in use, expected the previous model, or no migrate_from"
    )
    assert list(map(str, result.warnings)) == [sentence] * warned
    assert result.faults == ()


def test_the_model_to_migrate_from_is_checked_like_the_one_in_use(place: Path) -> None:
    place.write_text(CONFIG + "embedder: {migrate_from: {adaptor: onnx, migrate_from: {}}}\n")
    assert [fault.line for fault in check([], place, {}).faults] == [4, 4]
