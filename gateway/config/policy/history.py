"""The history of policies: time, author, diff and files of each, so that a rollback can restore it."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.config.policy.load import file_order
from gateway.config.policy.model import Policy
from gateway.files import replace_file

MAX_LINES = 5_000  # in a file: a comparison takes up to quadratic time

MAX_CHARACTERS = 2**18  # in a diff


def unified_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return a unified diff of two sets of files (name -> content), empty if nothing has changed."""
    lines: list[str] = []
    length = 0
    for line in _lines(before, after):
        length += len(line)
        if length > MAX_CHARACTERS:
            lines.append(f"\\ the diff is cut: it is longer than {MAX_CHARACTERS} characters\n")
            break
        lines.append(line)
    return "".join(lines)


def count_changes(diff: str) -> tuple[int, int]:
    """Return the numbers of lines that a unified diff adds and removes."""
    body = [line for line in diff.splitlines() if not line.startswith(("+++ ", "--- "))]
    return sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)


def _lines(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}, key=file_order):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        a, b = (text.splitlines(keepends=True) if text is not None else [] for text in (old, new))
        titles = ("/dev/null" if old is None else f"a/{name}", "/dev/null" if new is None else f"b/{name}")
        if max(len(a), len(b)) > MAX_LINES:
            yield f"--- {titles[0]}\n+++ {titles[1]}\n\\ more than {MAX_LINES} lines: too long to compare\n"
            continue
        for line in difflib.unified_diff(a, b, *titles):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


LOG = logging.getLogger("nearhit")

MAX_VERSIONS = 100

MAX_BYTES = 32 * 2**20  # of all versions together; the last one is kept at any size

AUTHOR, COMMENT = "x-nearhit-author", "x-nearhit-comment"  # headers with the author of a change and the reason

_PENDING = "pending.json"


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a change."""

    name: str
    via: str  # file | api | rollback | fleet
    comment: str = ""


BY_FILE = Author("file", "file")


@dataclass(frozen=True, slots=True)
class Version:
    """One policy that was in force."""

    version: int  # counts from 1
    at: float  # seconds since 1970
    hash: str
    author: Author
    files: Mapping[str, str]  # name -> content, in the order of their rules
    diff: str  # unified, from the previous version

    def as_json(self) -> dict[str, Any]:
        """Return the version for JSON, with its files and its diff."""
        return {**self.summary(), "files": dict(self.files), "diff": self.diff}

    def summary(self) -> dict[str, Any]:
        """Return the version for JSON, without contents."""
        added, removed = count_changes(self.diff)
        return {
            "version": self.version,
            "at": self.at,
            "hash": self.hash,
            "author": self.author.name,
            "via": self.author.via,
            "comment": self.author.comment,
            "files": list(self.files),
            "added": added,
            "removed": removed,
        }


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A change of the files, recorded before it happens. If the gateway ends meanwhile, the next start knows of it."""

    hash: str  # of the next policy
    author: Author
    before: Mapping[str, str]
    after: Mapping[str, str]

    def is_partially_applied(self, on_disk: Mapping[str, str]) -> bool:
        """Return whether some files have changed and others have not."""
        return (
            on_disk != self.before
            and on_disk != self.after
            and all(on_disk.get(name) in (self.before.get(name), self.after.get(name)) for name in self._names(on_disk))
        )

    def _names(self, on_disk: Mapping[str, str]) -> set[str]:
        return {*on_disk, *self.before, *self.after}


class History:
    """The versions of the policy, one file each in their own folder. `wall` returns seconds since 1970.

    All methods block, so call them in a thread. A version that cannot be written is logged; the policy is in force even
    then.
    """

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        self._folder = folder
        self._wall = wall
        self._versions: list[dict[str, Any]] = []  # summaries, oldest first

    def open(self) -> None:
        """Read the versions of the folder."""
        self._versions = [version.summary() for path in self._paths() if (version := _read(path)) is not None]

    def list_versions(self, limit: int) -> list[dict[str, Any]]:
        """Return summaries, the newest first."""
        return list(reversed(self._versions))[:limit]

    def find(self, key: str) -> Version | None:
        """Return a version by its number, or the newest one whose hash begins with `key` (four digits or more)."""
        number = int(key) if key.isascii() and key.isdigit() and len(key) <= 9 else None
        for summary in reversed(self._versions):
            if summary["version"] == number or (len(key) >= 4 and summary["hash"].startswith(key)):
                return _read(self._path(summary["version"], summary["hash"]))
        return None

    def previous(self) -> Version | None:
        """Return the version before the current one."""
        return self.find(str(self._versions[-2]["version"])) if len(self._versions) > 1 else None

    def record(self, policy: Policy, author: Author) -> None:
        """Add the policy that is now in force, unless it is the last version already."""
        pending = self.pending()
        if pending is not None and pending.hash == policy.hash and author.via == "file":
            author = pending.author  # this author had requested the change before the gateway ended
        if not self._versions or self._versions[-1]["hash"] != policy.hash:
            self._add(policy, author)
        self.clear_pending()

    def _add(self, policy: Policy, author: Author) -> None:
        last = self.find(str(self._versions[-1]["version"])) if self._versions else None
        files = {text.name: text.content.decode() for text in policy.texts}
        number = max((int(path.name[:6]) for path in self._paths()), default=0) + 1
        diff = unified_diff({} if last is None else last.files, files)
        version = Version(number, self._wall(), policy.hash, author, files, diff)
        if self._write(self._path(number, policy.hash), {**asdict(version)}):
            self._versions.append(version.summary())
            self._prune()

    def _prune(self) -> None:
        paths = list(reversed(self._paths()))
        size = 0
        for place, path in enumerate(paths):
            size += path.stat().st_size
            if place > 0 and (place >= MAX_VERSIONS or size > MAX_BYTES):
                path.unlink(missing_ok=True)
        left = {path.name for path in self._paths()}
        self._versions = [o for o in self._versions if self._path(o["version"], o["hash"]).name in left]

    def record_pending(self, change: PolicyChange) -> None:
        """Record a change before it happens."""
        self._write(self._folder / _PENDING, asdict(change))

    def pending(self) -> PolicyChange | None:
        """Return the recorded change that has not been cleared, or None."""
        try:
            value = orjson.loads((self._folder / _PENDING).read_bytes())
            return PolicyChange(value["hash"], Author(**value["author"]), value["before"], value["after"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def clear_pending(self) -> None:
        """Remove the recorded change."""
        try:
            (self._folder / _PENDING).unlink(missing_ok=True)
        except OSError as error:
            _warn(self._folder / _PENDING, error)

    def _path(self, number: int, policy_hash: str) -> Path:
        return self._folder / f"{number:06d}-{policy_hash}.json"

    def _paths(self) -> Sequence[Path]:
        """Return the files of the versions, oldest first."""
        return sorted(self._folder.glob("[0-9][0-9][0-9][0-9][0-9][0-9]-*.json"))

    def _write(self, path: Path, value: object) -> bool:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, orjson.dumps(value), path.with_suffix(".new"), 0o600)
        except OSError as error:
            _warn(path, error)
            return False
        return True


def _read(path: Path) -> Version | None:
    """Return a version, or None if its file is missing or damaged."""
    try:
        value = orjson.loads(path.read_bytes())
        return Version(**{**value, "author": Author(**value["author"])})
    except (OSError, ValueError, KeyError, TypeError):
        LOG.warning("a version of the policy cannot be read", extra={"fields": {"file": str(path)}})
        return None


def _warn(path: Path, error: OSError) -> None:
    fields = {"file": str(path), "error": error.strerror}
    LOG.error("the history of policies cannot be written", extra={"fields": fields})
