"""Checks of this machine: model files, data folder, locks, limits, libraries, clock. They block for milliseconds."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import gateway
from gateway.adapters.onnx.model_files import ModelCorrupt, ModelMissing, load_manifest, model_dir_of
from gateway.adapters.onnx.static_encoder import load_table
from gateway.cache.model_factory import build_encoder, build_verifier
from gateway.cli.doctor import Finding, fault, ok, warning
from gateway.config import Config
from gateway.config.schema import CrossEncoderConfig, EmbeddingModel
from gateway.errors import StartupError
from gateway.http_server.listening import allowed, needed

PACKAGE = Path(gateway.__file__ or "").parent
LOCKS = Path("/proc/locks")
LOCK_LINE = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", re.MULTILINE)
REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")
MIB, GIB = 2**20, 2**30
MIN_FREE_BYTES = 64 * MIB  # of disk: the append-only file and the log need some
# A million entries of 384 dimensions take 1.3 GB: `make bench-index`, docs/performance.md.
INDEX_BYTES_AN_ENTRY = 1300


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts on a model. `error` tells why it is unusable. `actual` is the model in the folder's manifest, if it has
    one."""

    key: str  # in the configuration: embedder | embedder.migrate_from | verifier.cross_encoder
    adapter: str
    expected: str
    folder: Path | None = None
    actual: str | None = None
    error: str | None = None
    no_static: str | None = None  # why questions cannot be sent on before they are embedded


def model(facts: ModelFacts) -> Finding:
    if facts.error is not None:
        first = "start that server" if facts.adapter == "triton" else "run `nearhit model fetch`"
        todo = f"{first}, or correct {facts.key} in config.yaml"
        return fault("embedding", f"{facts.key}: {facts.error}", todo)
    if facts.adapter == "hash":
        found = f"{facts.key}: the adapter hash compares letters, not meaning"
        return warning("embedding", found, "set embedder.adapter: onnx; hash is only for measurements")
    if facts.actual is not None and facts.actual != facts.expected:
        found = f"{facts.key}: {facts.folder} contains {facts.actual}, but {facts.expected} is configured"
        return fault(
            "embedding", found, "configure the model in the folder, or fetch the other one: `nearhit model fetch`"
        )
    if facts.no_static is not None:
        found = f"{facts.key}: every question is embedded before it goes to a backend: {facts.no_static}"
        return warning("embedding", found, "run `nearhit model fetch`, or `nearhit model build` for another model")
    return ok(
        "embedding", f"{facts.key}: {facts.expected} is available" + (", every file as built" if facts.actual else "")
    )


def inspect_models(config: Config) -> list[ModelFacts]:
    found = [_inspect_model("embedder", config.embedder)]
    if config.embedder.migrate_from is not None:
        found.append(_inspect_model("embedder.migrate_from", config.embedder.migrate_from))
    closer = config.verifier.cross_encoder
    if closer is not None and closer.adapter == "triton":
        found.append(_inspect_cross_encoder(config, closer))
    return found


def _inspect_cross_encoder(config: Config, section: CrossEncoderConfig) -> ModelFacts:
    """Load the cross-encoder as the gateway does at its start."""
    key = "verifier.cross_encoder"
    try:
        verifier = build_verifier(config.verifier, config.embedder, versions=config.data_dir)
    except (ModelMissing, ModelCorrupt, StartupError) as error:
        return ModelFacts(key, section.adapter, section.model, error=str(error))
    verifier.close()
    return ModelFacts(key, section.adapter, section.model)


def _inspect_model(key: str, model: EmbeddingModel) -> ModelFacts:
    if model.adapter == "sentence-transformers":
        there = importlib.util.find_spec("sentence_transformers") is not None
        absent = "its extra is not installed: pip install 'nearhit[sentence-transformers]'"
        return ModelFacts(key, model.adapter, model.model, error=None if there else absent)
    if model.adapter == "hash":
        return ModelFacts(key, model.adapter, model.model)
    if model.adapter == "triton":
        try:  # as the gateway does at its start
            return ModelFacts(key, model.adapter, build_encoder(model).fingerprint)
        except (ModelMissing, StartupError) as error:
            return ModelFacts(key, model.adapter, model.model, error=str(error))
    folder = model_dir_of(model)
    try:
        actual = load_manifest(folder)
    except (ModelMissing, ModelCorrupt) as error:
        return ModelFacts(key, model.adapter, model.model, folder, error=str(error))
    except OSError as error:
        return ModelFacts(key, model.adapter, model.model, folder, error=f"{folder}: {error.strerror}")
    try:
        load_table(folder, actual.identity)
    except (ModelMissing, ModelCorrupt) as error:
        return ModelFacts(key, model.adapter, model.model, folder, actual.model, no_static=str(error))
    return ModelFacts(key, model.adapter, model.model, folder, actual.model)


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """Facts on a folder. `error` tells why it is not writable. The holder of its lock is such as "process 12
    (nearhit)"."""

    path: Path
    error: str | None
    free: int
    holder: str | None


def data_dir(facts: FolderFacts, config: Config) -> Iterator[Finding]:
    if facts.error is not None:
        todo = "give the gateway's user write access, or set data_dir to another folder"
        yield fault("data_dir", f"{facts.path} is not writable: {facts.error}", todo)
        return
    held = f"in use by {facts.holder}" if facts.holder else "no gateway uses it"
    room = f"{facts.path} is writable, {_size(facts.free)} are free, {held}"
    # A rewrite of the append-only file needs the space of both files for a moment.
    expected = 2 * config.store.max_memory if config.store.url == "embedded" else GIB
    if facts.free < MIN_FREE_BYTES:
        yield fault("data_dir", room, "free space on that disk: the store cannot write")
    elif facts.free < expected:
        todo = f"free space: {_size(expected)} are needed" + (
            ", twice store.max_memory" if config.store.url == "embedded" else ""
        )
        yield warning("data_dir", room, todo)
    else:
        yield ok("data_dir", room)


def inspect_folder(path: Path) -> FolderFacts:
    """Check that the folder, or its first existing parent, is writable. Leaves nothing behind."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    error = None
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"0")
    except OSError as problem:
        error = problem.strerror or str(problem)
    return FolderFacts(path, error, shutil.disk_usage(there).free, None if error else _holder(path / "lock"))


def _holder(lock: Path) -> str | None:
    """Return the holder of a lock, such as "process 12 (nearhit)"; None if the lock is free."""
    try:
        with lock.open("rb") as file:
            # The lock is shared and brief: a gateway that starts just then would report that another one runs.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = holder_pid(lock)
        return "another process" if pid is None else f"process {pid} ({_name(pid)})"
    except OSError:  # there is no lock file yet
        return None
    return None


def holder_pid(lock: Path) -> int | None:
    """Return the process that holds the lock; None if the kernel does not show it, as across containers."""
    try:
        inode, lines = lock.stat().st_ino, LOCKS.read_text().splitlines()
    except OSError:
        return None
    for fields in map(str.split, lines):  # 1: FLOCK ADVISORY WRITE 812 fe:00:1234 0 EOF
        if len(fields) >= 6 and fields[5].rpartition(":")[2] == str(inode) and int(fields[4]) > 0:
            return int(fields[4])
    return None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()  # not the command line, which may contain secrets
    except OSError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Limits of this machine. A process may open so many `files`.

    `memory` are the bytes of the machine or of the control group, or None if they are unknown.
    """

    files: int
    memory: int | None


def limits(facts: MachineFacts, config: Config) -> Iterator[Finding]:
    expected = needed(config)
    most = f"{expected.inflight} requests in flight and {expected.calls} calls need {expected.files}"
    found = f"{facts.files} open files are allowed; {most}"
    todo = f"raise it to {expected.ample}: LimitNOFILE of the unit, or `ulimit -n`"
    if facts.files < expected.files:
        yield (fault if facts.files < expected.inflight else warning)("limits", found, todo)
    else:
        yield ok("limits", found)
    if facts.memory is not None:
        yield _memory_finding(facts.memory, config)


def _memory_finding(memory: int, config: Config) -> Finding:
    store = config.store.max_memory if config.store.url == "embedded" else 0
    index = INDEX_BYTES_AN_ENTRY * config.index.max_entries if config.index.adapter == "faiss" else 0
    full = store + config.store.front_size + index
    bodies = config.server.max_inflight * config.server.max_body
    found = (
        f"{_size(memory)} of memory; full caches take {_size(full)}, of which the index takes {_size(index)}; "
        f"request bodies at their limits take another {_size(bodies)}"
    )
    if full > memory:
        return warning("limits", found, "lower index.max_entries, store.max_memory or store.front_size")
    return ok("limits", found)


def inspect_machine(data_dir: Path) -> MachineFacts:
    """Return the limits of the gateway that runs on the folder, or else those that a gateway would get."""
    pid = holder_pid(data_dir / "lock")
    files = None if pid is None else _open_files_limit(pid)
    return MachineFacts(files or allowed(), _memory_limit())


def _open_files_limit(pid: int) -> int | None:
    try:
        found = re.search(r"^Max open files\s+(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1])


def _memory_limit() -> int | None:
    """Return the bytes of memory: the machine's, or the limit of the control group if that is lower."""
    known: list[int] = []
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        known += [] if found is None else [int(found[1]) * 1024]
        group = Path("/proc/self/cgroup").read_text().partition("0::/")[2].split("\n")[0]
        for folder in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup") / group):
            file = folder / "memory.max"
            if file.is_file() and (most := file.read_text().strip()).isdigit():
                known.append(int(most))
    except OSError:
        pass
    return min(known, default=None)


def installed_versions() -> dict[str, str | None]:
    """Return the installed version of each library that the package or its lock names; None if it is missing."""
    required = [line for line in importlib.metadata.requires("nearhit") or () if "extra ==" not in line]
    names = {found[0] for line in required if (found := REQUIREMENT_NAME.match(line))} | set(locked() or ())
    return {name: _version(name) for name in {name.lower().replace("_", "-") for name in names}}


def locked() -> dict[str, str] | None:
    """Return the versions in the lock file next to the package; None without one, as in an installed wheel."""
    lock = PACKAGE.parent / "requirements.lock"
    return dict(LOCK_LINE.findall(lock.read_text())) if lock.is_file() else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def build_time() -> float:
    """Return the modification time of the newest module of the package, in seconds since 1970."""
    return max(file.stat().st_mtime for file in PACKAGE.glob("*.py"))


def libraries(
    python: tuple[int, int], found: Mapping[str, str | None], locked: Mapping[str, str] | None
) -> Iterator[Finding]:
    """Check Python and the libraries.

    `found` has the installed version of each library, or None if it is missing. `locked` has the tested versions, or is
    None without a lock file.
    """
    if python < (3, 11):
        yield fault("libraries", f"Python is {python[0]}.{python[1]}", "use Python 3.11 or newer")
    absent = sorted(name for name, version in found.items() if version is None)
    if absent:
        yield fault("libraries", f"not installed: {', '.join(absent)}", "pip install -r requirements.lock")
    others = [
        f"{name} {version} (tested: {(locked or {})[name]})"
        for name, version in sorted(found.items())
        if version is not None and name in (locked or {}) and version != (locked or {})[name]
    ]
    if others:
        yield warning("libraries", f"versions differ from the tested ones: {', '.join(others)}", "make setup")
    elif not absent:
        compared = "no lock file next to the package" if locked is None else "as in requirements.lock"
        yield ok("libraries", f"Python {python[0]}.{python[1]}, {len(found)} libraries, {compared}")


def clock(wall: float, build_time: float) -> Finding:
    """Check the clock. Times are seconds since 1970; a correct clock is not before `build_time`."""
    if wall < build_time:
        return fault("clock", "this machine's clock is before the build time of this program", "set it: run chrony")
    return ok("clock", f"this machine's clock says {datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M:%SZ}")


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
