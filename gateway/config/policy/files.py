"""The folder of policy files, written: each file whole or not at all, also when the machine stops on the way."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import policy_files, read_texts
from gateway.config.policy.model import PolicySource
from gateway.errors import BadRequest, GatewayError
from gateway.files import replaced

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.yaml", re.ASCII)
_NEW_FILE_MODE = 0o644


class NotWritable(GatewayError):
    """The files cannot be made to say it; nothing has changed."""

    status = 503
    kind = "policy_not_writable"


def validate_name(name: str) -> str:
    """Of a policy file in the folder itself. Raises `BadRequest`."""
    if _NAME.fullmatch(name) is None:
        raise BadRequest(
            "file: expected the name of a policy file such as support.yaml: letters, digits, '.', '_' and '-'"
        )
    return name


class PolicyFolder:
    """The files that say what is in force."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def texts(self) -> list[PolicySource]:
        """All files in their order. Raises `ConfigInvalid` where one cannot be read."""
        texts, faults = read_texts(policy_files(self.path))
        if faults:
            raise ConfigInvalid(faults)
        return texts

    def modified_at(self) -> float | None:
        """When the youngest of the files was written, seconds since 1970; None where there are none."""
        try:
            return max((path.stat().st_mtime for path in policy_files(self.path)), default=None)
        except (OSError, ConfigInvalid):
            return None

    def to_texts(self, files: Mapping[str, bytes]) -> list[PolicySource]:
        """The same of files that do not lie here yet."""
        return [PolicySource(str(self.path / name), content) for name, content in files.items()]

    def write(self, files: Mapping[str, bytes]) -> None:
        """Makes the folder have these policy files, and no other ones. What is the same already is not touched.

        Each file is replaced as one (written beside it, synced, renamed); between two of them the machine may stop.
        Raises `NotWritable` before the first change where it can be told, and with what was done where it cannot.
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
            had = f"; {', '.join(done)} had been changed" if done else ""
            raise NotWritable(
                f"{self.path} cannot be written ({error.strerror}){had}: expected a folder in which the gateway may "
                "write, or the change made there"
            ) from None

    @staticmethod
    def _reject_symlink(path: Path) -> None:
        if path.is_symlink():  # a Kubernetes volume: what lies behind the link is changed elsewhere
            raise NotWritable(f"{path} is a link: expected the change made in what it points to")

    @staticmethod
    def _replace(path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{path.name}.new")  # hidden: nobody takes it for a policy file
        mode = path.stat().st_mode & 0o777 if path.exists() else _NEW_FILE_MODE
        try:
            replaced(path, content, temporary, mode)
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
