"""Write an imported configuration: as YAML, loaded before any file is in place."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gateway.config.errors import ConfigInvalid
from gateway.config.load import read_config
from gateway.config.policy.load import LAST_FILE, load_policy
from gateway.features.importing.draft import Draft
from gateway.features.importing.errors import ImportFailed
from gateway.files import replace_file

CONFIG_FILE, POLICY_FILE = "config.yaml", f"policies/{LAST_FILE}"

_WIDTH = 120
_PLACEHOLDER = "http://placeholder.invalid:80"  # for variables that are not set yet: a URL may contain one
_PORT = "80"
_MODE = 0o644


def write(draft: Draft, title: str, folder: Path, environ: Mapping[str, str], *, overwrite: bool) -> list[str]:
    """Write the files into a folder and return their paths.

    They are loaded first, from a temporary folder. Variables that are not set yet have placeholders there. Raise
    `ImportFailed` if the files exist or the configuration does not load.
    """
    texts = {CONFIG_FILE: config_text(draft, title), POLICY_FILE: policy_text(draft, title)}
    present = [name for name in texts if (folder / name).exists()]
    if present and not overwrite:
        raise ImportFailed(f"{folder / present[0]} exists, expected another --out DIR, or --overwrite")
    with tempfile.TemporaryDirectory() as scratch:
        _write_files(Path(scratch), texts)
        _load(Path(scratch), _complete(draft, environ))
    try:
        return _write_files(folder, texts)
    except OSError as error:
        raise ImportFailed(f"{folder} cannot be written ({error.strerror}), expected a folder") from None


def config_text(draft: Draft, title: str) -> str:
    """Return config.yaml."""
    sections = {name: section for name, section in draft.sections.items() if section}
    parts = [*({name: section} for name, section in sections.items()), {"backends": draft.backends}]
    return f"# {title}\nversion: 1\n" + "".join(map(_dump, parts))


def policy_text(draft: Draft, title: str) -> str:
    """Return policies/default.yaml."""
    return f"# {title}\n" + _dump({"version": 1, "routes": draft.routes})


class _Dumper(yaml.SafeDumper):
    """Indents the items of lists, and writes no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(value: object) -> str:
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=_WIDTH, allow_unicode=True)


def _write_files(folder: Path, texts: Mapping[str, str]) -> list[str]:
    written = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), path.with_name(f".{path.name}.new"), _MODE)
        written.append(str(path))
    return written


def _complete(draft: Draft, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which every variable of the configuration is set. Settings of nearhit stay out."""
    return dict(_placeholders(draft)) | {name: environ[name] for name in draft.variables if environ.get(name)}


def _placeholders(draft: Draft) -> Iterator[tuple[str, str]]:
    url = str(draft.sections.get("store", {}).get("url", ""))
    for name in draft.variables:
        if url == f"${{{name}}}":
            yield name, "redis://placeholder.invalid"
        elif f"${{{name}}}" in url:
            yield name, _PORT if url.endswith(f":${{{name}}}") else "placeholder.invalid"
        else:
            yield name, _PLACEHOLDER


def _load(folder: Path, environ: Mapping[str, str]) -> None:
    try:
        config = read_config(folder / CONFIG_FILE, environ, runs_here=False).valid()
        load_policy(config.policies, config)
    except ConfigInvalid as invalid:
        faults = "; ".join(str(fault).removeprefix(f"{folder}/") for fault in invalid.faults)
        raise ImportFailed(f"the new configuration does not load, so nothing is written: {faults}") from None
