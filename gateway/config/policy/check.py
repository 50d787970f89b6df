"""The checks of `nearhit check`: every fault of the configuration and its policies at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.config.errors import ConfigError, ConfigInvalid, sort_errors
from gateway.config.load import ConfigReader as ConfigReading
from gateway.config.load import read_config
from gateway.config.policy.load import LAST_FILE, policy_files, read_policy, read_texts
from gateway.config.policy.model import Policy
from gateway.config.yaml_loader import load_yaml, read_file


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. It is good if `faults` is empty."""

    faults: tuple[ConfigError, ...]
    warnings: tuple[ConfigError, ...]
    files: tuple[str, ...]

    def with_warnings(self, extra: Iterable[ConfigError]) -> CheckResult:
        """Return the result with more warnings."""
        return replace(self, warnings=(*self.warnings, *extra))

    def as_json(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "ok": not self.faults,
            "files": list(self.files),
            "faults": [fault.as_json() for fault in self.faults],
            "warnings": [warning.as_json() for warning in self.warnings],
        }


Rehearse = Callable[[Policy, Mapping[str, str]], Iterable[ConfigError]]
"""Runs the expectations of a policy, given the adapter of each backend, and returns those that fail."""


def _no_rehearsal(*_: object) -> Iterable[ConfigError]:
    return ()


def check(
    paths: Sequence[Path],
    config_path: Path,
    environ: Mapping[str, str] = os.environ,
    rehearse: Rehearse = _no_rehearsal,
) -> CheckResult:
    """Check each path: a configuration file, a policy file, or a folder of policy files.

    Without paths, check the configuration and its policies. Policies may name the backends of the first configuration
    among the paths, or else of `config_path`. If that does not exist, the names are not checked. Expectations run only
    on a complete policy, because those of a single file depend on the others.
    """
    configs = [path for path in paths if _is_config(path, config_path)]
    reading = read_config(configs[0] if configs else config_path, environ)
    checking = _PolicyCheck(reading, rehearse)
    if not paths:
        checking.add_config(config_path, reading)
        checking.add_policies(reading.policies)
    for path in paths:
        if path in configs:
            checking.add_config(path, read_config(path, environ))
        else:
            checking.add_policies(path)
    return checking.result()


class _PolicyCheck:
    """The faults and warnings so far."""

    def __init__(self, reading: ConfigReading, rehearse: Rehearse) -> None:
        self._backends = reading.backends
        self._rehearse = rehearse
        configured = {} if reading.config is None else reading.config.backends
        self._adapters = {name: backend.adapter for name, backend in configured.items()}
        self._faults: list[ConfigError] = []
        self._warnings: list[ConfigError] = []
        self._files: list[str] = []

    def add_config(self, path: Path, reading: ConfigReading) -> None:
        """Add the faults and warnings of a configuration."""
        self._files.append(str(path))
        self._faults += reading.faults
        self._warnings += reading.warnings

    def add_policies(self, path: Path) -> None:
        """Check a folder as a whole, or one file."""
        if not path.is_dir():
            # With a default.yaml in its folder, a file is a part of the policy and needs no default rule.
            part = path.name != LAST_FILE and (path.parent / LAST_FILE).is_file()
            self._read_files([path], ends=not part)
            return
        try:
            self._read_files(policy_files(path), ends=True, folder=path)
        except ConfigInvalid as invalid:
            self._faults += invalid.faults
            return
        for other in sorted(path.glob("*.yml")):
            message = "the file is not in force, expected a name that ends in .yaml"
            self._warnings.append(ConfigError(str(other), 1, (), message))

    def result(self) -> CheckResult:
        """Return all faults and warnings, sorted."""
        return CheckResult(sort_errors(self._faults), sort_errors(self._warnings), tuple(self._files))

    def _read_files(self, paths: Sequence[Path], ends: bool, folder: Path | None = None) -> None:
        self._files += map(str, paths)
        texts, faults = read_texts(paths)
        reading = read_policy(texts, self._backends, ends=ends and not faults, folder=folder, adapters=self._adapters)
        self._faults += [*faults, *reading.faults]
        self._warnings += reading.warnings
        if ends and not faults and reading.policy is not None:
            self._faults += self._rehearse(reading.policy, self._adapters)


def _is_config(path: Path, config_path: Path) -> bool:
    """Return whether a file is a configuration, by its name or else by its keys."""
    if path == config_path or path.name == config_path.name:
        return True
    if path.is_dir():
        return False
    try:
        content = load_yaml(read_file(path, "a file"), str(path), {}).value
    except ConfigInvalid:
        return False
    return "routes" not in content and bool({"backends", "server", "policies"} & content.keys())
