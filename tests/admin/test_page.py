"""The dashboard's files: complete, and with charts or without."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Never

import pytest

from gateway.admin import static_files
from gateway.admin.static_files import StaticFiles, chart_files


def test_every_module_is_there_and_fetched_at_once() -> None:
    files = StaticFiles()._files
    index = files["index.html"].decode()
    named = set(re.findall(r'"/dashboard/([a-z_./]+)"', index))
    assert named == set(files) - {"index.html"}
    for name, content in files.items():
        for imported in re.findall(r'from "(\.[^"]+)"', content.decode()):
            assert imported.rpartition("/")[2] in {other.rpartition("/")[2] for other in files}, f"{name}: {imported}"


def test_no_module_makes_markup_of_text() -> None:
    for name, content in StaticFiles()._files.items():
        if name.endswith(".js") and name != "uplot.js":
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|javascript:", content.decode()
            ), name


def test_without_the_charts_package_its_files_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"uPlot" in chart_files()["uplot.js"]

    def absent(name: str) -> Never:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(static_files.metadata, "distribution", absent)
    assert set(chart_files().values()) == {b""}
