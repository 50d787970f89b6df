"""Versions of a tuned verifier in the data directory, and the verifier that a gateway builds from them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.adapters.onnx.model_files import MODEL
from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.cache.model_factory import build_verifier, embedder_name
from gateway.cache.verifier_versions import KEPT, WEIGHT_FILES, VerifierVersions
from gateway.cache.verifiers import WEIGHTS, TwoStageVerifier
from gateway.config import VerifierConfig
from gateway.config.schema import EmbeddingModel
from gateway.ports import StoredCandidate

EMBEDDER = EmbeddingModel(adapter="onnx", model=MODEL)
PAIR = "How do I reset my password?", StoredCandidate("What are the steps to reset a password?", 0.9)


def weight_files(bias: float = 0.0) -> Mapping[str, bytes]:
    """The shipped files, with another number in the score."""
    files = {name: (WEIGHTS / name).read_bytes() for name in WEIGHT_FILES}
    about = json.loads(files["verifier.json"])
    about["combination"]["first"][0] += bias
    return files | {"verifier.json": json.dumps(about).encode()}


def put(folder: Path, bias: float = 0.0) -> str:
    return VerifierVersions(folder).put_in_force(weight_files(bias), embedder_name(EMBEDDER), {"labels": 1000})


def built(folder: Path | None) -> TwoStageVerifier:
    verifier = build_verifier(VerifierConfig(), EMBEDDER, folder)
    assert isinstance(verifier, TwoStageVerifier)
    verifier.close()
    return verifier


def score(verifier: TwoStageVerifier) -> float:
    question, candidate = PAIR
    return verifier.opinions(question, [candidate])[0].score


def test_a_gateway_uses_the_version_in_force(tmp_path: Path) -> None:
    shipped = built(tmp_path)
    version = put(tmp_path, 0.6)
    tuned = built(tmp_path)
    assert score(tuned) == pytest.approx(score(shipped) + 0.6 / 12.0)
    assert tuned.basis != shipped.basis, "state that was learnt on other scores is not used"
    assert version in tuned.basis
    assert built(None).basis == shipped.basis


def test_a_rollback_returns_to_the_version_before(tmp_path: Path) -> None:
    versions = VerifierVersions(tmp_path)
    first, second = put(tmp_path, 0.1), put(tmp_path, 0.2)
    assert versions.in_force() == second
    assert versions.rollback() == first
    assert first in built(tmp_path).basis
    assert versions.rollback() is None
    assert built(tmp_path).basis == built(None).basis
    with pytest.raises(WeightsCorrupt, match="expected a version to roll back"):
        versions.rollback()


def test_a_version_after_a_rollback_follows_the_one_in_force(tmp_path: Path) -> None:
    versions = VerifierVersions(tmp_path)
    first, second = put(tmp_path, 0.1), put(tmp_path, 0.2)
    versions.rollback()
    third = put(tmp_path, 0.3)
    assert [each.name for each in versions.all()] == [first, second, third]
    assert [each.in_force for each in versions.all()] == [False, False, True]
    assert versions.rollback() == first


def test_the_newest_versions_are_kept(tmp_path: Path) -> None:
    made = [put(tmp_path, 0.01 * n) for n in range(KEPT + 2)]
    versions = VerifierVersions(tmp_path)
    assert [each.name for each in versions.all()] == made[2:]
    for expected in [*reversed(made[2:-1]), None]:
        assert versions.rollback() == expected


@pytest.mark.parametrize("name", [*WEIGHT_FILES, "manifest.json"])
def test_damaged_files_leave_the_shipped_verifier(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "verifier" / put(tmp_path) / name
    path.write_bytes(path.read_bytes()[:-9])
    with caplog.at_level(logging.WARNING):
        assert built(tmp_path).basis == built(None).basis
    assert "the tuned verifier is not used" in caplog.text
    (path.parent / name).unlink()
    assert built(tmp_path).basis == built(None).basis


@pytest.mark.parametrize("content", [b"", b"[]", b'{"chain": "0001-00000000"}', b'{"chain": ["../../etc"]}'])
def test_a_damaged_pointer_leaves_the_shipped_verifier(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path)
    (tmp_path / "verifier" / "in_force.json").write_bytes(content)
    assert built(tmp_path).basis == built(None).basis
    assert "the tuned verifier is not used" in caplog.text
    version = put(tmp_path, 0.5)  # the next version repairs the pointer
    assert VerifierVersions(tmp_path).in_force() == version


def test_another_embedder_gets_the_shipped_verifier(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    VerifierVersions(tmp_path).put_in_force(weight_files(0.5), f"{MODEL}/000000000000", {})
    assert built(tmp_path).basis == built(None).basis
    assert caplog.records[-1].__dict__["fields"]["error"].count(MODEL) == 2


def test_a_verifier_without_a_cross_encoder_is_not_tuned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    version = put(tmp_path)
    verifier = build_verifier(VerifierConfig(cross_encoder=None), EMBEDDER, tmp_path)
    assert version not in verifier.basis
    verifier.close()
    assert "the tuned verifier is not used" in caplog.text


def test_only_its_owner_can_read_a_version(tmp_path: Path) -> None:
    folder = tmp_path / "verifier" / put(tmp_path)
    assert {path.stat().st_mode & 0o077 for path in [folder.parent, *folder.iterdir()]} == {0}
