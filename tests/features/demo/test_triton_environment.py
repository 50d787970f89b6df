"""Where Triton cannot run, one sentence says why; where it can, it is installed once."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from gateway.features.demo import triton_environment as module
from gateway.features.demo.errors import TritonUnavailable
from gateway.features.demo.triton_environment import check_platform, ensure_libpython, ensure_triton


def silent(message: str) -> None: ...


@pytest.fixture(autouse=True)
def python_with_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite runs on Pythons, too, that the server has no wheel for."""
    monkeypatch.setattr(module, "PYTHONS", (sys.version_info[:2],))


@pytest.mark.parametrize(
    ("function", "value", "sentence"),
    [
        ("machine", "aarch64", "exists for Linux x86_64 only, not Linux aarch64"),
        ("system", "Darwin", "exists for Linux x86_64 only, not Darwin"),
        ("libc_ver", ("glibc", "2.31"), r"needs glibc 2\.35 or newer .*, not glibc 2\.31"),
        ("libc_ver", ("", ""), r"needs glibc 2\.35 or newer"),
    ],
)
def test_a_machine_without_a_wheel_is_told_so_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, function: str, value: object, sentence: str
) -> None:
    monkeypatch.setattr(platform, function, lambda: value)
    with pytest.raises(TritonUnavailable, match=sentence):
        check_platform()


def test_a_python_without_a_wheel_is_told_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PYTHONS", ((3, 99),))
    with pytest.raises(TritonUnavailable, match=r"needs Python 3\.11 or 3\.12"):
        check_platform()


def test_a_missing_libpython_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not there and not to be had: the server would hang without a word."""
    monkeypatch.setattr(module, "_find_library", lambda *_: None)
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-get
    with pytest.raises(TritonUnavailable, match=r"needs libpython3\.\d+\.so\.1\.0: install .*apt-get install"):
        ensure_libpython(tmp_path, silent)


def test_an_installation_that_fails_ends_with_what_pip_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the next start tries again: nothing marks the attempt as done."""
    root = tmp_path / "env"

    def fail(path: Path, lock: bytes) -> None:
        module._run(["/bin/sh", "-c", "echo 'ERROR: no matching distribution' >&2; exit 1"])

    monkeypatch.setattr(module, "_install", fail)
    for _ in range(2):
        with pytest.raises(TritonUnavailable, match="could not be installed: ERROR: no matching distribution"):
            ensure_triton(root, silent)


def test_an_environment_that_is_there_is_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installs: list[Path] = []

    def install(root: Path, lock: bytes) -> None:
        installs.append(root)
        root.mkdir()

    monkeypatch.setattr(module, "_install", install)
    monkeypatch.setattr(module, "ensure_libpython", lambda *_: Path("/lib/libpython3.11.so.1.0"))
    assert ensure_triton(tmp_path / "env", silent) == ensure_triton(tmp_path / "env", silent)
    assert installs == [tmp_path / "env"]
