"""Writes the table of platforms in docs/install.md: `python -m docs.tools.platforms` (4 minutes, with a package index).

For each platform pip resolves requirements.lock by the tags of the wheels, without installing or building anything. A
package without a wheel is then left out, so that all of them are found.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from docs.tools.page_parts import with_part

ROOT = Path(__file__).parents[2]
PAGE, LOCK = ROOT / "docs" / "install.md", ROOT / "requirements.lock"
PART = "platforms"
TIMEOUT_S = 600.0  # measured: 35 s for a platform
PIN = re.compile(r"^([A-Za-z0-9._-]+==\S+)", re.MULTILINE)
NO_WHEEL = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+==\S+)")
GLIBC = (
    "2_35",
    "2_34",
    "2_31",
    "2_28",
    "2_27",
    "2_26",
    "2_24",
    "2_17",
    "2_12",
    "2_5",
)  # pip does not derive older ones


class Platform(NamedTuple):
    """A machine, by its tags. pip derives the tags of older versions of macOS itself."""

    name: str
    tags: Sequence[str]
    pythons: Sequence[str] = ("3.11", "3.13")


class ResolveFailed(Exception):
    """pip failed for another reason than a missing wheel. The message is its last line."""


def glibc(machine: str) -> list[str]:
    return [*(f"manylinux_{version}_{machine}" for version in GLIBC), f"manylinux2014_{machine}"]


PLATFORMS = (
    Platform("Linux with glibc 2.35, x86_64", glibc("x86_64")),
    Platform("Linux with glibc 2.35, ARM (aarch64)", glibc("aarch64")),
    Platform("macOS 14, Apple silicon", ["macosx_14_0_arm64"]),
    Platform("macOS 14, Intel", ["macosx_14_0_x86_64"], ("3.11",)),
    Platform("Linux with musl (Alpine), x86_64", ["musllinux_1_2_x86_64", "musllinux_1_1_x86_64"], ("3.11",)),
)


def without_wheel(pins: Sequence[str], tags: Sequence[str], python: str) -> list[str]:
    """Return those of `pins` that have no wheel for a CPython `python` with one of `tags`. Raise `ResolveFailed`."""
    left, missing = list(pins), list[str]()
    while left:
        with tempfile.TemporaryDirectory() as target:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
            command += ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--target", target]
            command += ["--implementation", "cp", "--python-version", python, *(f"--platform={tag}" for tag in tags)]
            done = subprocess.run(  # noqa: S603 - the command is built here
                [*command, *left], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        if done.returncode == 0:
            break
        found = NO_WHEEL.search(done.stderr)
        if found is None or found[1] not in left:
            raise ResolveFailed((done.stderr.strip().splitlines() or ["pip failed"])[-1])
        missing.append(found[1])
        left.remove(found[1])
    return missing


def row(platform: Platform, pins: Sequence[str]) -> str:
    """Return the row of a platform."""
    missing = {python: without_wheel(pins, platform.tags, python) for python in platform.pythons}
    lacks = sorted({pin for pins in missing.values() for pin in pins})
    said = "all" if not lacks else f"no wheel of {', '.join(lacks)}"
    return f"| {platform.name} | {', '.join(platform.pythons)} | {said} |"


def main() -> None:
    pins = PIN.findall(LOCK.read_text())
    lines = ["| platform | Python | locked packages |", "|---|---|---|"]
    for platform in PLATFORMS:
        lines.append(row(platform, pins))
        print(lines[-1], flush=True)
    PAGE.write_text(with_part(PAGE.read_text("utf-8"), PART, "\n".join(lines) + "\n"), "utf-8")


if __name__ == "__main__":
    main()
