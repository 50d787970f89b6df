"""The configuration files of a page, and `nearhit check` on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.__main__ import main

DOCS = Path(__file__).parents[2] / "docs"
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
VARIABLE = re.compile(r"(?:_env|{env): (\w+)")
FILE = re.compile(r"`((?:config|policies/[\w-]+)\.yaml)`:\n\n```yaml\n(.*?)```", re.DOTALL)


def recipes(page: str) -> dict[str, dict[str, str]]:
    """Return the files of each section that has any, by the section's heading; before the first heading it is empty."""
    parts = HEADING.split(page)
    sections = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    return {heading: files for heading, text in sections.items() if (files := dict(FILE.findall(text)))}


def check(folder: Path, files: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Write the files into an empty folder, make it the current one, and return the exit status of `nearhit check`.

    Every environment variable that `config.yaml` names is set."""
    monkeypatch.chdir(folder)
    for variable in VARIABLE.findall(files["config.yaml"]):
        monkeypatch.setenv(variable, "a-secret-of-32-random-characters")
    (folder / "policies").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return main(["check", "--config", "config.yaml"])
