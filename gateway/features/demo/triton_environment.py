"""Makes the virtual environment of the demo's Triton server once, and reuses it afterwards.

The server has a separate environment because its python backend needs numpy 1, and the gateway needs numpy 2.
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

from gateway.features.demo.errors import TritonUnavailable

Progress = Callable[[str], None]

MIN_GLIBC = (2, 35)  # the wheel's platform tag: manylinux_2_35
PYTHONS = ((3, 11), (3, 12))  # versions for which both numpy 1.26 and the server's python backend exist
INSTALL_TIMEOUT_S = 900  # 100 MB of wheels over a slow connection
APT_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class TritonEnvironment:
    """A working installation. `root` is the environment, `libpython` the library that the backend stub loads."""

    root: Path
    libpython: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def libraries(self) -> Path:
        """The directory with the shared libraries of the wheel."""
        return _site_packages(self.root) / "nvidia_pytriton.libs"

    @property
    def server(self) -> Path:
        """The directory with the server's binary and backends."""
        return _site_packages(self.root) / "pytriton" / "tritonserver"


def default_environment() -> Path:
    return Path(sys.prefix) / "share" / "nearhit" / "triton"


def ensure_triton(root: Path, progress: Progress) -> TritonEnvironment:
    """Make the environment at `root` unless it exists, and report each step to `progress`.

    The call blocks for about 10 s plus the download of 100 MB the first time, and for a millisecond after that. Raises
    `TritonUnavailable`.
    """
    check_platform()
    root = root.absolute()
    lock = resources.files("gateway.features.demo").joinpath("requirements-triton.txt").read_bytes()
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
    """Raise `TritonUnavailable` if no wheel of the server exists for this machine."""
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
    """Return the path of libpython3.x.so.1.0. The backend stub links to it; without it the server hangs.

    The search covers the directories of the interpreter and of Debian. If the library is not there, it is extracted
    from Debian's package into `root`; the system stays unchanged. Raises `TritonUnavailable`.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"libpython{version}.so.1.0"
    library = _find_library(name, root)
    if library is None:
        progress(f"fetching {name} from the Debian package libpython{version}")
        _extract_debian_package(f"libpython{version}", root / "debian")
        library = _find_library(name, root)
    if library is None:
        raise TritonUnavailable(
            f"Triton's python backend needs {name}: install Debian's libpython{version} "
            f"(apt-get install libpython{version})"
        )
    return library


def _find_library(name: str, root: Path) -> Path | None:
    """Find the library. The one of the interpreter comes first: it matches the standard library that the stub loads."""
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
    """Download a package and unpack it into `target`. On failure, `target` stays without its files."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        return
    with tempfile.TemporaryDirectory() as scratch:
        try:
            subprocess.run(  # noqa: S603 - fixed arguments
                [apt, "download", package], cwd=scratch, check=True, capture_output=True, timeout=APT_TIMEOUT_S
            )
            for archive in Path(scratch).glob("*.deb"):
                subprocess.run(  # noqa: S603
                    [dpkg, "-x", str(archive), str(target)], check=True, capture_output=True, timeout=APT_TIMEOUT_S
                )
        except (subprocess.SubprocessError, OSError):
            return  # no network or no package lists; the caller notices that the file is missing


def _install(root: Path, lock: bytes) -> None:
    """Fill the environment with the pip of this interpreter, because Debian's python3 has no ensurepip."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(root)])
    with tempfile.NamedTemporaryFile(suffix=".txt") as requirements:
        requirements.write(lock)
        requirements.flush()
        pip = [sys.executable, "-m", "pip", "--python", str(root / "bin" / "python"), "--disable-pip-version-check"]
        what = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", requirements.name]
        _run([*pip, "install", "--quiet", *what])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the command is built here
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise TritonUnavailable(f"the Triton server could not be installed: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        cause = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message")
        raise TritonUnavailable(f"the Triton server could not be installed: {cause.strip()}")


def _site_packages(root: Path) -> Path:
    return root / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


@contextmanager
def _exclusive_lock(root: Path) -> Iterator[None]:
    """Let one process at a time build: a demo and a test run may both find the environment missing."""
    root.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(root.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)  # closing also unlocks
