"""Facts of this machine: files, disk, locks, limits, libraries. All of it blocks for milliseconds."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import re
import shutil
import tempfile
from pathlib import Path

import gateway
from gateway.adapters.onnx.model_files import ModelCorrupt, ModelMissing, load_manifest
from gateway.cache.model_factory import build_encoder, build_verifier, model_dir_of
from gateway.cli.doctor.verdicts import FolderFacts, MachineFacts, ModelFacts
from gateway.config import Config
from gateway.config.schema import EmbeddingModel
from gateway.config.verifier import CrossEncoder
from gateway.errors import StartFailed
from gateway.open_files import allowed

PACKAGE = Path(gateway.__file__ or "").parent
LOCKS = Path("/proc/locks")
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
NAMED = re.compile(r"[A-Za-z0-9._-]+")


def look_at_models(config: Config) -> list[ModelFacts]:
    found = [_look_at_model("embedder", config.embedder)]
    if config.embedder.migrate_from is not None:
        found.append(_look_at_model("embedder.migrate_from", config.embedder.migrate_from))
    closer = config.verifier.cross_encoder
    if closer is not None and closer.adapter == "triton":
        found.append(_look_at_cross_encoder(config, closer))
    return found


def _look_at_cross_encoder(config: Config, section: CrossEncoder) -> ModelFacts:
    """As the gateway does at its start."""
    key = "verifier.cross_encoder"
    try:
        verifier = build_verifier(config.verifier, config.embedder)
    except (ModelMissing, ModelCorrupt, StartFailed) as error:
        return ModelFacts(key, section.adapter, section.model, error=str(error))
    verifier.close()
    return ModelFacts(key, section.adapter, section.model)


def _look_at_model(key: str, model: EmbeddingModel) -> ModelFacts:
    if model.adapter == "sentence-transformers":
        there = importlib.util.find_spec("sentence_transformers") is not None
        absent = "its extra is not installed: pip install 'nearhit[sentence-transformers]'"
        return ModelFacts(key, model.adapter, model.model, error=None if there else absent)
    if model.adapter == "hash":
        return ModelFacts(key, model.adapter, model.model)
    if model.adapter == "triton":
        try:  # as the gateway does at its start
            return ModelFacts(key, model.adapter, build_encoder(model).fingerprint)
        except (ModelMissing, StartFailed) as error:
            return ModelFacts(key, model.adapter, model.model, error=str(error))
    folder = model_dir_of(model)
    try:
        holds = load_manifest(folder).model
    except (ModelMissing, ModelCorrupt) as error:
        return ModelFacts(key, model.adapter, model.model, folder, error=str(error))
    except OSError as error:
        return ModelFacts(key, model.adapter, model.model, folder, error=f"{folder}: {error.strerror}")
    return ModelFacts(key, model.adapter, model.model, folder, holds)


def look_at_folder(path: Path) -> FolderFacts:
    """Leaves nothing behind. Where the folder is not there yet, it is the first one above that counts."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    error = None
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"0")
    except OSError as problem:
        error = problem.strerror or str(problem)
    return FolderFacts(path, error, shutil.disk_usage(there).free, None if error else _holder(path / "lock"))


def _holder(lock: Path) -> str | None:
    """Who holds a lock, such as "process 12 (nearhit)"; None where nobody does."""
    try:
        with lock.open("rb") as file:
            # Shared, and for a moment: a gateway that starts in just that moment would say that another one runs.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = holder_pid(lock)
        return "another process" if pid is None else f"process {pid} ({_name(pid)})"
    except OSError:  # there is none yet
        return None
    return None


def holder_pid(lock: Path) -> int | None:
    """As far as the kernel tells: not across containers."""
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
        return Path(f"/proc/{pid}/comm").read_text().strip()  # its command line may hold what nobody is to see
    except OSError:
        return "unknown"


def look_at_machine(data_dir: Path) -> MachineFacts:
    """The limits of the gateway that runs on that folder, else those to which one would raise its own."""
    pid = holder_pid(data_dir / "lock")
    files = None if pid is None else _files_of(pid)
    return MachineFacts(files or allowed(), _memory())


def _files_of(pid: int) -> int | None:
    try:
        found = re.search(r"^Max open files\s+(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1])


def _memory() -> int | None:
    """Bytes: the machine's, or what the control group may have where that is less."""
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


def installed() -> dict[str, str | None]:
    """Of each library that the package or its lock names: the version that is there, or None."""
    required = [line for line in importlib.metadata.requires("nearhit") or () if "extra ==" not in line]
    names = {found[0] for line in required if (found := NAMED.match(line))} | set(locked() or ())
    return {name: _version(name) for name in {name.lower().replace("_", "-") for name in names}}


def locked() -> dict[str, str] | None:
    """The versions of the lock beside the package; None where there is none, as in an installed wheel."""
    lock = PACKAGE.parent / "requirements.lock"
    return dict(LOCKED.findall(lock.read_text())) if lock.is_file() else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def built() -> float:
    """When the newest module of the package was made; seconds since 1970."""
    return max(file.stat().st_mtime for file in PACKAGE.glob("*.py"))
