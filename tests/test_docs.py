"""README, docs and code say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.__main__ import build_parser
from gateway.config import Config, OpenAIBackendConfig
from gateway.config.policy.schema import PolicyFile
from gateway.config.validation import Section
from gateway.features.onnx_backend.settings import OnnxBackendConfig
from gateway.features.triton.settings import TritonBackendConfig
from gateway.outcomes import Admission, Bypass, Choice, Refusal, Verdict
from gateway.priority import ShedReason
from tests.fixtures.metrics import all_metrics

ROOT = Path(__file__).parents[1]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
OBSERVING = (ROOT / "docs" / "observing.md").read_text()
DEPENDENCIES = (ROOT / "docs" / "dependencies.md").read_text()
README = (ROOT / "README.md").read_text()


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from models_in(part)


def leaves(model: type[BaseModel]) -> Iterator[str]:
    """The last word of every key that a file may have, those of features included."""
    further = {each.key: each.field for each in model.further_keys()} if issubclass(model, Section) else {}
    for name, field in {**model.model_fields, **further}.items():
        inner = list(models_in(field.annotation))
        if inner:
            for each in inner:
                yield from leaves(each)
        else:
            yield name


@pytest.mark.parametrize("model", [Config, OpenAIBackendConfig, TritonBackendConfig, OnnxBackendConfig, PolicyFile])
def test_every_setting_is_documented(model: type[BaseModel]) -> None:
    missing = {leaf for leaf in leaves(model) if not re.search(rf"\b{leaf}\b", CONFIGURATION)}
    assert not missing


@pytest.mark.parametrize("words", [Verdict, Bypass, Refusal, Admission, Choice, ShedReason])
def test_every_verdict_and_reason_is_documented(words: type[StrEnum]) -> None:
    missing = {word.value for word in words if f"`{word.value}`" not in OBSERVING}
    assert not missing


def test_every_metric_is_documented_with_its_labels() -> None:
    rows = {line for line in OBSERVING.splitlines() if line.startswith("| `nearhit_")}
    for metric in all_metrics():
        row = next((row for row in rows if f"`{metric.name}`" in row), None)
        assert row is not None, metric.name
        assert all(label in row for label in metric.labels), metric.name


def test_no_metric_is_documented_that_does_not_exist() -> None:
    known = {metric.name for metric in all_metrics()}
    assert set(re.findall(r"`(nearhit_[a-z_]+)`", OBSERVING)) <= known


def test_every_link_in_the_documentation_leads_somewhere() -> None:
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for page in [*pages, *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_dependency_is_documented_with_its_reason() -> None:
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    required = re.findall(r"^  \"([\w.-]+(?:\[\w+\])?)[^\"]*\",(?: *# (.*))?$", listed[1], re.MULTILINE)
    assert len(required) == listed[1].count('  "')
    installed = DEPENDENCIES.partition("## What is installed")[2].partition("\n\nExtras")[0]
    assert re.findall(r"^\| `(.*)` \| (.*) \|$", installed, re.MULTILINE) == required


def test_every_part_that_is_written_by_hand_is_there() -> None:
    named = set(re.findall(r"`(gateway/[\w/.]+)`", DEPENDENCIES))
    assert named and {name for name in named if not (ROOT / name).exists()} == set()


def test_every_command_that_the_readme_names_exists() -> None:
    commands = build_parser().format_help()
    for name in set(re.findall(r"nearhit (serve|check|explain|demo|model|simulate|capacity|cache)\b", README)):
        assert name in commands
    targets = (ROOT / "Makefile").read_text()
    for name in set(re.findall(r"(?:`|    )make ([a-z]+)\b", README)):
        assert re.search(rf"^{name}:", targets, re.MULTILINE)
