"""Every policy that came into force: when, by whom, what changed, and its files, so that it can come back."""

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
from gateway.files import replaced

# What has changed between two sets of policy files, as a unified diff. Pure.
MAX_LINES = 5_000  # of a file: the comparison takes up to the square of it

MAX_CHARACTERS = 2**18  # of a diff


def unified_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Name -> content, before and after -> a unified diff over all of them; empty where nothing has changed."""
    lines: list[str] = []
    length = 0
    for line in _lines(before, after):
        length += len(line)
        if length > MAX_CHARACTERS:
            lines.append(f"\\ the diff goes on: it is longer than {MAX_CHARACTERS} characters\n")
            break
        lines.append(line)
    return "".join(lines)


def count_changes(diff: str) -> tuple[int, int]:
    """Of a unified diff -> lines added, lines removed."""
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

MAX_BYTES = 32 * 2**20  # of all versions; the last one is kept whatever its size

AUTHOR, COMMENT = "x-nearhit-author", "x-nearhit-comment"  # headers that say who changes it, and why

_PENDING = "pending.json"


@dataclass(frozen=True, slots=True)
class Author:
    """Who changed the policy, and how."""

    name: str
    via: str  # file | api | rollback | fleet
    comment: str = ""


BY_FILE = Author("file", "file")


@dataclass(frozen=True, slots=True)
class Version:
    """One policy that came into force."""

    version: int  # counts from 1
    at: float  # seconds since 1970
    hash: str
    author: Author
    files: Mapping[str, str]  # name -> content, in the order in which their rules are tried
    diff: str  # unified, from the version before

    def as_json(self) -> dict[str, Any]:
        return {**self.summary(), "files": dict(self.files), "diff": self.diff}

    def summary(self) -> dict[str, Any]:
        """Without contents."""
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
    """What is about to be done to the files, noted before: if the gateway ends on the way, the next start knows."""

    hash: str  # of the policy that is to come
    author: Author
    before: Mapping[str, str]
    after: Mapping[str, str]

    def is_partially_applied(self, on_disk: Mapping[str, str]) -> bool:
        """Whether the files are neither what they were nor what they were to be, but some of both."""
        return (
            on_disk != self.before
            and on_disk != self.after
            and all(on_disk.get(name) in (self.before.get(name), self.after.get(name)) for name in self._names(on_disk))
        )

    def _names(self, on_disk: Mapping[str, str]) -> set[str]:
        return {*on_disk, *self.before, *self.after}


class History:
    """Kept in a folder of its own, a file a version. `wall`: seconds since 1970. Blocks: for threads.

    What cannot be written is said in the log, and hinders nobody: the policy is in force all the same.
    """

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        self._folder = folder
        self._wall = wall
        self._versions: list[dict[str, Any]] = []  # outlines, oldest first

    def open(self) -> None:
        """Reads what is there."""
        self._versions = [version.summary() for path in self._paths() if (version := _read(path)) is not None]

    def list_versions(self, limit: int) -> list[dict[str, Any]]:
        """The youngest first."""
        return list(reversed(self._versions))[:limit]

    def find(self, key: str) -> Version | None:
        """By its number, or the youngest one of a hash or of at least four digits that it begins with."""
        number = int(key) if key.isascii() and key.isdigit() and len(key) <= 9 else None
        for summary in reversed(self._versions):
            if summary["version"] == number or (len(key) >= 4 and summary["hash"].startswith(key)):
                return _read(self._path(summary["version"], summary["hash"]))
        return None

    def previous(self) -> Version | None:
        """What was in force before the policy that is."""
        return self.find(str(self._versions[-2]["version"])) if len(self._versions) > 1 else None

    def record(self, policy: Policy, author: Author) -> None:
        """Adds the policy that has come into force, unless it is the last one already."""
        pending = self.pending()
        if pending is not None and pending.hash == policy.hash and author.via == "file":
            author = pending.author  # it had asked for this when the gateway ended
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

    # What is under way

    def record_pending(self, change: PolicyChange) -> None:
        """Notes what is about to be done to the files."""
        self._write(self._folder / _PENDING, asdict(change))

    def pending(self) -> PolicyChange | None:
        """What was announced and not settled."""
        try:
            said = orjson.loads((self._folder / _PENDING).read_bytes())
            return PolicyChange(said["hash"], Author(**said["author"]), said["before"], said["after"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def clear_pending(self) -> None:
        """Nothing is under way."""
        try:
            (self._folder / _PENDING).unlink(missing_ok=True)
        except OSError as error:
            _warn(self._folder / _PENDING, error)

    def _path(self, number: int, policy_hash: str) -> Path:
        return self._folder / f"{number:06d}-{policy_hash}.json"

    def _paths(self) -> Sequence[Path]:
        """Oldest first."""
        return sorted(self._folder.glob("[0-9][0-9][0-9][0-9][0-9][0-9]-*.json"))

    def _write(self, path: Path, value: object) -> bool:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replaced(path, orjson.dumps(value), path.with_suffix(".new"), 0o600)
        except OSError as error:
            _warn(path, error)
            return False
        return True


def _read(path: Path) -> Version | None:
    """None: it is not there, or not as it was written."""
    try:
        said = orjson.loads(path.read_bytes())
        return Version(**{**said, "author": Author(**said["author"])})
    except (OSError, ValueError, KeyError, TypeError):
        LOG.warning("a version of the policy cannot be read", extra={"fields": {"file": str(path)}})
        return None


def _warn(path: Path, error: OSError) -> None:
    fields = {"file": str(path), "error": error.strerror}
    LOG.error("the history of policies cannot be written", extra={"fields": fields})
