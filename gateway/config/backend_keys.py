"""The keys of a backend, or of one of its upstreams, that give the gateway credentials of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from gateway.config.errors import KeyPath, format_value
from gateway.config.fields import Command, EnvironmentName, File
from gateway.config.validation import Problem, Section

CREDENTIALS = ("api_key_env", "api_key_file", "api_key_command", "identity")
"""Those keys. A section has one of them."""


class Keyed(Section):
    """A section with the credentials of an endpoint."""

    api_key_env: EnvironmentName | None = None
    """The variable with the key."""
    api_key_file: File | None = None
    """The file with the key."""
    api_key_command: Command | None = None
    """The command that prints the key."""

    @property
    def has_key(self) -> bool:
        """Whether the section gives the gateway credentials of its own."""
        return any(getattr(self, key, None) is not None for key in CREDENTIALS)

    def with_key_paths(self, folder: Path) -> Self:
        """Return the section with the paths of its key resolved against a folder. A program without a slash is one of
        `PATH`."""
        update: dict[str, Any] = {}
        if self.api_key_file is not None:
            update["api_key_file"] = (folder / self.api_key_file).absolute()
        if self.api_key_command is not None and "/" in self.api_key_command[0]:
            program, *arguments = self.api_key_command
            update["api_key_command"] = (str((folder / program).absolute()), *arguments)
        return self.model_copy(update=update) if update else self

    def key_faults(self, folder: Path) -> Iterator[tuple[KeyPath, str]]:
        """Yield the faults of the file with the key, or of the program that prints it."""
        resolved = self.with_key_paths(folder)
        if resolved.api_key_file is not None and (fault := file_fault(resolved.api_key_file)):
            yield ("api_key_file",), f"{self.api_key_file}: {fault}"
        if resolved.api_key_command is not None and shutil.which(resolved.api_key_command[0]) is None:
            program = format_value(resolved.api_key_command[0])
            yield ("api_key_command",), f"{program} is no program, expected one in PATH, or the path of one"


def file_fault(path: Path) -> str:
    """Return why a file has no key; empty if it has one."""
    reading = import_module("gateway.upstream.key_text")
    try:
        reading.read_key(path, 0.0)
    except reading.NoCredentials as fault:
        return str(fault)
    return ""


def key_problems(settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the contradictions between the keys in `CREDENTIALS`."""
    given = _present_credentials(settings)
    for key in given[1:]:
        yield Problem(key, f"cannot stand next to '{given[0]}', expected only one of the two")


def header_problems(settings: Mapping[str, Any], key_header: str) -> Iterator[Problem]:
    """Yield the contradictions between `headers` and credentials that are renewed: a request would have both.

    `key_header` is the header of a key, in small letters. A token may go in `Authorization` instead.
    """
    headers, listed = settings.get("headers"), settings.get("upstreams")
    addresses = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    renewed = [key for each in (settings, *addresses) for key in _present_credentials(each) if key != "api_key_env"]
    if not renewed or not isinstance(headers, Mapping):
        return
    for name in headers:
        if isinstance(name, str) and name.lower() in (key_header, "authorization"):
            yield Problem("headers", f"{name.lower()} is the header of '{renewed[0]}', expected only one of the two")


def _present_credentials(settings: Mapping[str, Any]) -> list[str]:
    return [key for key in CREDENTIALS if settings.get(key) is not None]
