"""Settings from the environment: `NEARHIT_SERVER__LISTEN=0.0.0.0:80` overrides `server.listen` of the file."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_origin

from gateway.config.backends import OpenAIBackendConfig, section_of
from gateway.config.errors import ConfigError, KeyPath, closest_match
from gateway.config.schema import Config
from gateway.config.validation import Section
from gateway.config.yaml_values import ScalarInvalid, padded, resolve_scalar, variable_value
from gateway.errors import StartupError

_PREFIX = "NEARHIT_"
_TOP_LEVEL = ("data_dir", "policies")


@dataclass(frozen=True, slots=True)
class EnvironmentOverrides:
    """A document that includes the settings of the environment."""

    value: dict[str, Any]
    origins: Mapping[KeyPath, str]  # path of a value -> the variable that it came from
    faults: tuple[ConfigError, ...]
    warnings: tuple[ConfigError, ...]


def apply_environment(document: Mapping[str, Any], environ: Mapping[str, str]) -> EnvironmentOverrides:
    """Return a copy of the document with every setting of the environment.

    Only `NEARHIT_DATA_DIR`, `NEARHIT_POLICIES` and names with `__` are settings. Kubernetes sets `NEARHIT_PORT` and
    `NEARHIT_SERVICE_HOST` for a service of this name, and `NEARHIT_ADMIN_TOKEN` may contain a secret.
    """
    value = copy.deepcopy(dict(document))
    paths = dict(_setting_paths(value))
    origins: dict[KeyPath, str] = {}
    faults: list[ConfigError] = []
    warnings: list[ConfigError] = []
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or ("__" not in name and name not in paths):
            continue
        path = paths.get(name)
        if path is None:
            guess = closest_match(name, paths)
            hint = f", did you mean {guess}?" if guess else ","
            message = f"unknown setting{hint} expected NEARHIT_SECTION__KEY with keys of config.yaml"
            faults.append(environment_fault(name, message))
            continue
        try:
            text, was_padded = variable_value(environ, name)
            if was_padded:
                warnings.append(environment_fault(name, padded(name)))
            if _set_value(value, path, resolve_scalar(text)):
                origins[path] = name
        except ScalarInvalid as invalid:
            faults.append(environment_fault(name, str(invalid)))
    return EnvironmentOverrides(value, origins, tuple(faults), tuple(warnings))


def environment_fault(name: str, message: str) -> ConfigError:
    """Return a fault of a variable. The environment has no lines."""
    return ConfigError("environment", 0, (name,), message)


def read_secret(environ: Mapping[str, str], variable: str | None, where: str) -> str | None:
    """Return the value of a variable that the key `where` names, without white space at its end.

    Raise `StartupError`, without the value, if it is not set or has another control character.
    """
    if variable is None:
        return None
    try:
        value, _ = variable_value(environ, variable)
    except ScalarInvalid as invalid:
        raise StartupError(f"{where}: {invalid}") from None
    if not value:
        raise StartupError(f"{where} names the environment variable {variable}, which is not set")
    return value


def _setting_paths(document: Mapping[str, Any]) -> Iterator[tuple[str, KeyPath]]:
    paths = [path for path in _scalar_paths(Config) if len(path) > 1 or path[0] in _TOP_LEVEL]
    backends = document.get("backends")
    for name, backend in backends.items() if isinstance(backends, dict) else ():
        paths += [("backends", name, *path) for path in _scalar_paths(_section_of(backend))]
    for path in paths:
        yield _PREFIX + "__".join(re.sub(r"[^A-Z0-9]", "_", str(part).upper()) for part in path), path


def _section_of(backend: object) -> type[Section]:
    """Return the class of a backend's section. The section itself reports an adapter that is unknown or broken."""
    try:
        section = section_of(backend.get("adapter") if isinstance(backend, dict) else None)
    except StartupError:
        section = None
    return section or OpenAIBackendConfig


def _scalar_paths(section: type[Section]) -> Iterator[KeyPath]:
    """Yield the path of every key that takes a scalar."""
    for key, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from ((key, *rest) for rest in _scalar_paths(kind))
        elif get_origin(kind) is not Mapping:
            yield (key,)


def _set_value(document: dict[str, Any], path: KeyPath, value: object) -> bool:
    """Set the value. Return False if the path leads through something else than a mapping, a fault of the file."""
    place: Any = document
    for part in path[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            return False
    place[path[-1]] = value
    return True
