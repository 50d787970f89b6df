"""Where the demo's Triton server lives: a virtual environment of its own, made once, reused at once.

Its own because the server's python backend needs numpy 1 where the gateway needs numpy 2.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from gateway.tools.demo.errors import TritonUnavailable

Progress = Callable[[str], None]

MIN_GLIBC = (2, 35)  # the wheel's platform tag: manylinux_2_35
PYTHONS = ((3, 11), (3, 12))  # those that both numpy 1.26 and the server's python backend exist for
INSTALL_TIMEOUT_S = 900  # 100 MB of wheels over a slow line
APT_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class TritonEnvironment:
    """A usable installation: `root` is the environment, `libpython` the library that the backend stub loads."""

    root: Path
    libpython: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def libraries(self) -> Path:
        """The shared libraries that the wheel brings for the server."""
        return _site_packages(self.root) / "nvidia_pytriton.libs"

    @property
    def server(self) -> Path:
        """The directory with the server's binary and backends."""
        return _site_packages(self.root) / "pytriton" / "tritonserver"


def default_environment() -> Path:
    return Path(sys.prefix) / "share" / "nearhit" / "triton"


def ensure_triton(root: Path, progress: Progress) -> TritonEnvironment:
    """Makes the environment at `root` unless it is there, and says what it does through `progress`.

    Blocks: about 10 s plus the download of 100 MB the first time, a millisecond after that. Raises
    `TritonUnavailable`.
    """
    check_platform()
    root = root.absolute()
    lock = resources.files("gateway.tools.demo").joinpath("requirements-triton.txt").read_bytes()
    digest = hashlib.sha256(lock + sys.version.encode()).hexdigest()
    stamp = root / "nearhit-lock.sha256"
    with _exclusive_lock(root):
        if not (stamp.is_file() and stamp.read_text() == digest):
            progress(f"installing the Triton server into {root} (about 100 MB, once)")
            shutil.rmtree(root, ignore_errors=True)
            _install(root, lock)
            stamp.write_text(digest)
        return TritonEnvironment(root, ensure_libpython(root, progress))


def check_platform() -> None:
    """Raises `TritonUnavailable` where no wheel of the server exists for this machine."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise TritonUnavailable(f"the demo's Triton server exists for Linux x86_64 only, not {system} {machine}")
    if sys.version_info[:2] not in PYTHONS:
        raise TritonUnavailable(f"the demo's Triton server needs Python 3.11 or 3.12, not {platform.python_version()}")
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split(".")[:2])) < MIN_GLIBC:
        raise TritonUnavailable(
            f"the demo's Triton server needs glibc 2.35 or newer (Debian 12, Ubuntu 22.04), not {libc} {version}"
        )


def ensure_libpython(root: Path, progress: Progress) -> Path:
    """The path of libpython3.x.so.1.0, which the backend stub is linked with. Without it the server hangs.

    Looked for where the interpreter and Debian put it, else taken out of Debian's package into `root`, without
    touching the system. Raises `TritonUnavailable`.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"libpython{version}.so.1.0"
    found = _find_library(name, root)
    if found is None:
        progress(f"fetching {name} from the Debian package libpython{version}")
        _extract_debian_package(f"libpython{version}", root / "debian")
        found = _find_library(name, root)
    if found is None:
        raise TritonUnavailable(
            f"Triton's python backend needs {name}: install Debian's libpython{version} "
            f"(apt-get install libpython{version})"
        )
    return found


def _find_library(name: str, root: Path) -> Path | None:
    """The interpreter's own comes first: it fits the standard library that the stub will load."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    directories = [
        Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib"),
        Path(sys.base_prefix) / "lib",
        *(Path(base) / multiarch for base in ("/usr/lib", "/lib", "/usr/local/lib")),
        *map(Path, ("/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64")),
        root / "debian" / "usr" / "lib" / multiarch,
    ]
    return next((directory / name for directory in directories if (directory / name).is_file()), None)


def _extract_debian_package(package: str, target: Path) -> None:
    """Downloads and unpacks a package; leaves `target` without its files when that is not possible here."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        return
    with tempfile.TemporaryDirectory() as scratch:
        try:
            subprocess.run(  # noqa: S603 - fixed words
                [apt, "download", package], cwd=scratch, check=True, capture_output=True, timeout=APT_TIMEOUT_S
            )
            for archive in Path(scratch).glob("*.deb"):
                subprocess.run(  # noqa: S603
                    [dpkg, "-x", str(archive), str(target)], check=True, capture_output=True, timeout=APT_TIMEOUT_S
                )
        except (subprocess.SubprocessError, OSError):
            return  # no network, no package lists: the caller sees that the file is not there


def _install(root: Path, lock: bytes) -> None:
    """Our own pip fills an environment that has none: Debian's python3 comes without ensurepip."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(root)])
    with tempfile.NamedTemporaryFile(suffix=".txt") as requirements:
        requirements.write(lock)
        requirements.flush()
        pip = [sys.executable, "-m", "pip", "--python", str(root / "bin" / "python"), "--disable-pip-version-check"]
        what = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", requirements.name]
        _run([*pip, "install", "--quiet", *what])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own words and paths
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise TritonUnavailable(f"the Triton server could not be installed: {error}") from error
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        cause = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no message")
        raise TritonUnavailable(f"the Triton server could not be installed: {cause.strip()}")


def _site_packages(root: Path) -> Path:
    return root / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


@contextmanager
def _exclusive_lock(root: Path) -> Iterator[None]:
    """One process at a time: a demo and a test run may both find the environment missing."""
    root.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(root.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)  # which also unlocks it
