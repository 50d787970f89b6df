"""Read `config.yaml` and the environment into a `Config`, or into all of their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from gateway.config.environment import apply_environment, environment_fault
from gateway.config.errors import ConfigError, ConfigInvalid, KeyPath, sort_errors
from gateway.config.schema import Config, EmbeddingModel, ServerConfig
from gateway.config.store import StoreConfig
from gateway.config.validation import error_messages
from gateway.config.yaml_loader import load_yaml, read_file
from gateway.config.yaml_values import ScalarInvalid, padded, variable_value

DEFAULT_PATH = Path("config.yaml")
Model = TypeVar("Model", bound=EmbeddingModel)


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """A configuration as far as it is readable. `nearhit check` can check its policies even if it has faults."""

    config: Config | None  # None if there are faults
    faults: tuple[ConfigError, ...]
    backends: frozenset[str]
    policies: Path
    warnings: tuple[ConfigError, ...] = ()  # valid, but unlikely to be meant
    unusable: Mapping[str, str] = field(default_factory=dict)  # variables of secrets, and why; each is a fault as well

    def valid(self, warn: Callable[[ConfigError], object] | None = None) -> Config:
        """Return the configuration; `warn` gets each warning. Raise `ConfigInvalid`."""
        if self.config is None:
            raise ConfigInvalid(self.faults)
        if warn is not None:
            for warning in self.warnings:
                warn(warning)
        return self.config


def load_config(
    path: Path | None, environ: Mapping[str, str], warn: Callable[[ConfigError], object] | None = None
) -> Config:
    """Read the file (None: `config.yaml` in the working directory) and the settings of the environment.

    Relative paths start at the file's folder. `warn` gets each warning. Raise `ConfigInvalid` with every fault.
    """
    return read_config(path or DEFAULT_PATH, environ).valid(warn)


def read_config(path: Path, environ: Mapping[str, str], *, runs_here: bool = True) -> ConfigReader:
    """Read the file and the environment as `load_config` does, without raising. Unless the gateway `runs_here`, the
    files and libraries that its backends need may be missing."""
    expected = "a configuration file; --config names another, --upstream URL starts without one"
    try:
        source = load_yaml(read_file(path, expected), str(path), environ)
    except ConfigInvalid as invalid:
        return ConfigReader(None, invalid.faults, frozenset(), path.parent / "policies")

    def fault_at(place: KeyPath, message: str) -> ConfigError | None:
        return None if place in source.unreadable else source.fault(place, message)

    return build_config(
        source.value, source.faults, fault_at, path.parent, environ, source.warnings, runs_here=runs_here
    )


def build_config(
    document: Mapping[str, Any],
    faults: tuple[ConfigError, ...],
    fault_at: Callable[[KeyPath, str], ConfigError | None],
    folder: Path,
    environ: Mapping[str, str],
    doubts: tuple[ConfigError, ...] = (),
    *,
    runs_here: bool = True,
) -> ConfigReader:
    """Return the configuration of a document. `fault_at` makes a fault of a path, or None if that has one already.
    `doubts` are the warnings of the document."""
    overridden = apply_environment(document, environ)
    errors, warnings = [*faults, *overridden.faults], [*doubts, *overridden.warnings]

    def report(path: KeyPath, message: str, among: list[ConfigError] = errors) -> None:
        name = overridden.origins.get(path)
        fault = environment_fault(name, message) if name else fault_at(path, message)
        if fault:
            among.append(fault)

    config, unusable = None, dict[str, str]()
    try:
        config = Config.model_validate(overridden.value)
    except ValidationError as invalid:
        for path, message in error_messages(invalid):
            report(path, message)
    else:
        for path, name in secret_variables(config):
            try:
                secret, was_padded = variable_value(environ, name)
            except ScalarInvalid as invalid:
                unusable[name] = "has a control character"
                report(path, str(invalid))
                continue
            if not secret:
                unusable[name] = "is not set"
                report(path, f"the environment variable {name} is not set, expected the secret in it")
            elif was_padded:
                report(path, padded(name), warnings)
        for path, message in _backend_faults(config, folder) if runs_here else ():
            report(path, message)
        if config.embedder.migrates_to_same_model:
            message = "names the model in use, expected the previous model, or no migrate_from"
            report(("embedder", "migrate_from"), message, warnings)
    backends, policies = overridden.value.get("backends"), overridden.value.get("policies")
    return ConfigReader(
        None if errors or config is None else _resolve_paths(config, folder),
        sort_errors(errors),
        frozenset(backends if isinstance(backends, dict) else ()),
        folder / (policies if isinstance(policies, str) and policies.isprintable() else "policies"),
        tuple(warnings),
        unusable,
    )


def secret_variables(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Yield each path that names the environment variable of a secret, with that variable."""
    store, encryption = config.store, config.store.encryption
    named: list[tuple[KeyPath, str | None]] = [
        (("auth", "admin_token_env"), config.auth.admin_token_env),
        (("store", "password_env"), store.password_env),
        (("store", "sentinel_password_env"), store.sentinel_password_env),
        (("store", "erasure_key_env"), store.erasure_key_env),
        *(
            (("store", "encryption", "keys", i, "env"), key.env)
            for i, key in enumerate(() if encryption is None else encryption.keys)
        ),
        (("index", "token_env"), config.index.token_env),
        (("jobs", "key_env"), config.jobs.key_env),
        (("jobs", "webhook_secret_env"), config.jobs.webhook_secret_env),
        (("telemetry", "traces", "headers_env"), config.telemetry.traces.headers_env),
    ]
    for name, backend in config.backends.items():
        named += ((("backends", name, *path), variable) for path, variable in backend.secrets())
    yield from ((path, variable) for path, variable in named if variable)


def _backend_faults(config: Config, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    """Yield the faults of files without which a backend cannot start."""
    for name, backend in config.backends.items():
        yield from ((("backends", name, *path), message) for path, message in backend.faults(folder))


def _resolve_paths(config: Config, folder: Path) -> Config:
    """Return the configuration with paths resolved against the file's folder.

    The paths of child processes and models are absolute, because those run in other folders. `policies` stays short,
    because every fault of a policy repeats it.
    """
    embedder = _resolve_model_dir(config.embedder, folder)
    if embedder.migrate_from is not None:
        embedder = embedder.model_copy(update={"migrate_from": _resolve_model_dir(embedder.migrate_from, folder)})
    return config.model_copy(
        update={
            "server": _resolve_tls(config.server, folder),
            "store": _resolve_store_tls(config.store, folder),
            "data_dir": (folder / config.data_dir).absolute(),
            "policies": folder / config.policies,
            "embedder": embedder,
            "backends": {name: backend.resolved(folder) for name, backend in config.backends.items()},
        }
    )


def _resolve_tls(server: ServerConfig, folder: Path) -> ServerConfig:
    tls = server.tls
    if tls is None:
        return server
    client_ca = None if tls.client_ca is None else folder / tls.client_ca
    files = {"certificate": folder / tls.certificate, "key": folder / tls.key, "client_ca": client_ca}
    return server.model_copy(update={"tls": tls.model_copy(update=files)})


def _resolve_store_tls(store: StoreConfig, folder: Path) -> StoreConfig:
    if store.tls is None:
        return store
    files = {name: folder / file for name, file in store.tls if file is not None}
    return store.model_copy(update={"tls": store.tls.model_copy(update=files)})


def _resolve_model_dir(model: Model, folder: Path) -> Model:
    if model.model_dir is None:
        return model
    return model.model_copy(update={"model_dir": (folder / model.model_dir).absolute()})
