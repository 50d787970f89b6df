"""Extensions of this wheel and of installed packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.errors import StartupError
from gateway.extensions import Extensions

GROUP = "nearhit.tests"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a distribution that declares two extensions, one of them broken."""
    (tmp_path / "of_others.py").write_text("THING = 'a thing'\n")
    about = tmp_path / "of_others-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: of-others\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{GROUP}]\nthing = of_others:THING\nbroken = of_others:NOTHING\nmath = of_others:THING\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_extension_of_an_installed_package_is_found_by_its_name(installed: Path) -> None:
    extensions = Extensions(GROUP, {"math": "math:pi"})
    assert extensions.load("thing") == "a thing"
    assert extensions.load("nothing") is None
    assert extensions.names() == ("math", "broken", "thing")
    assert installed.exists()


def test_a_package_cannot_take_a_name_of_this_wheel(installed: Path) -> None:
    assert Extensions(GROUP, {"math": "math:pi"}).load("math") == pytest.approx(3.14159, abs=1e-5)
    assert installed.exists()


def test_a_broken_extension_is_named_with_its_package(installed: Path) -> None:
    with pytest.raises(StartupError, match=r"nearhit\.tests: broken of of-others cannot be loaded from of_others:NOTH"):
        Extensions(GROUP, {}).load("broken")
    assert installed.exists()


def test_nothing_is_imported_before_it_is_loaded() -> None:
    extensions = Extensions(GROUP, {"fractions": "this:s"})
    extensions.names()
    assert "this" not in sys.modules
