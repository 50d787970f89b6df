"""Write policy files to their folder, each file completely or not at all, even if the machine stops."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import policy_files, read_texts
from gateway.config.policy.model import PolicySource
from gateway.errors import BadRequest, GatewayError
from gateway.files import replace_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.yaml", re.ASCII)
_NEW_FILE_MODE = 0o644


class NotWritable(GatewayError):
    """The policy files cannot be written. The policy in force has not changed."""

    status = 503
    kind = "policy_not_writable"


def validate_name(name: str) -> str:
    """Return the name of a policy file in the folder itself. Raise `BadRequest`."""
    if _NAME.fullmatch(name) is None:
        raise BadRequest(
            "file: expected the name of a policy file such as support.yaml: letters, digits, '.', '_' and '-'"
        )
    return name


class PolicyFolder:
    """The files of the policy in force."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def texts(self) -> list[PolicySource]:
        """Return all files in their order. Raise `ConfigInvalid` if one is not readable."""
        texts, faults = read_texts(policy_files(self.path))
        if faults:
            raise ConfigInvalid(faults)
        return texts

    def modified_at(self) -> float | None:
        """Return the modification time of the newest file, in seconds since 1970, or None without files."""
        try:
            return max((path.stat().st_mtime for path in policy_files(self.path)), default=None)
        except (OSError, ConfigInvalid):
            return None

    def to_texts(self, files: Mapping[str, bytes]) -> list[PolicySource]:
        """Return the sources of files that are not in the folder yet."""
        return [PolicySource(str(self.path / name), content) for name, content in files.items()]

    def write(self, files: Mapping[str, bytes]) -> None:
        """Replace the policy files of the folder by these. Leave equal files alone.

        Each file is replaced atomically (temporary file, sync, rename); the machine may stop between two files. Raise
        `NotWritable`, if possible before the first change; otherwise the error lists the changed files.
        """
        before = {path.name: path for path in policy_files(self.path)} if self.path.is_dir() else {}
        gone = sorted(before.keys() - files.keys())
        changed = [name for name, content in files.items() if _read_content(self.path / name) != content]
        for name in [*changed, *gone]:
            self._reject_symlink(self.path / name)
        done: list[str] = []
        try:
            for name in changed:
                self._replace(self.path / name, files[name])
                done.append(name)
            for name in gone:
                (self.path / name).unlink()
                done.append(name)
            _fsync_folder(self.path)
        except OSError as error:
            had = f"; {', '.join(done)} have changed" if done else ""
            raise NotWritable(
                f"{self.path} cannot be written ({error.strerror}){had}: expected a folder that the gateway can write, "
                "or an edit of the files in place"
            ) from None

    @staticmethod
    def _reject_symlink(path: Path) -> None:
        if path.is_symlink():  # a Kubernetes volume: the target of the link is changed elsewhere
            raise NotWritable(f"{path} is a link: expected a change of the file that it points to")

    @staticmethod
    def _replace(path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{path.name}.new")  # hidden, so that it is not read as a policy file
        mode = path.stat().st_mode & 0o777 if path.exists() else _NEW_FILE_MODE
        try:
            replace_file(path, content, temporary, mode)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _read_content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
