"""Makes an int8 ONNX embedder of any sentence-transformers model, for `nearhit model build`.

The model is a folder, or a name on the hub where the network reaches one. `convert.py` converts it in the build
environment, which has torch.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.adapters.onnx.model_files import MANIFEST_FILE, MODEL, sha256_of
from gateway.model_build.environment import FetchFailed, run_step
from gateway.model_build.fetch import (
    Progress,
    build_environment,
    digests_of,
    exclusive_lock,
    install_model,
)
from gateway.model_build.static_vectors import add_static_vectors

HUB = "https://huggingface.co"  # unless HF_ENDPOINT names another one
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
MODULES = "modules.json"  # the list of modules that makes a folder such a model
MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
CONNECT_TIMEOUT_S = 5.0
CONVERT_TIMEOUT_S = 3600.0  # measured: 60 s for 110 million weights; a download may come before it
LICENCE = re.compile(r"^licen[sc]e:\s*(\S[^\n]{0,80})$", re.MULTILINE)  # of the model card


def build(
    source: str, name: str | None, model_dir: Path, progress: Progress, *, prompt: str | None, keep_env: Path | None
) -> dict[str, Any]:
    """Build the model into `model_dir`, in place of a former one of that name, and return its manifest.

    The name is the last part of `source` unless `name` is given. `prompt` stands in front of every text; without it,
    the prompt of the model's files does. With `keep_env`, the build environment stays at that path. A build
    blocks for minutes. Raises `FetchFailed` with one sentence; then a former model is unchanged.
    """
    folder = Path(source).expanduser()
    name = name or (folder.resolve().name if folder.is_dir() else source.rsplit("/", 1)[-1])
    if not MODEL_NAME.fullmatch(name) or name == MODEL:
        raise FetchFailed(
            f"{name!r} cannot name the model: expected --name with letters, digits, dots, dashes or underscores, "
            f"and not {MODEL}, which `nearhit model fetch` builds"
        )
    if folder.is_dir() and not (folder / MODULES).is_file():
        raise FetchFailed(f"{folder} has no {MODULES}, expected the folder of a sentence-transformers model")
    given = str(folder.absolute()) if folder.is_dir() else _hub_name(source)
    try:
        with exclusive_lock(model_dir), tempfile.TemporaryDirectory(prefix=".build-", dir=model_dir) as scratch:
            python = build_environment(keep_env.absolute() if keep_env else Path(scratch) / "environment", progress)
            progress(f"converting {source} to int8 ONNX and comparing with the original")
            built = Path(scratch) / name
            _convert(python, given, built, name, prompt)
            manifest = _manifest(built, source, folder if folder.is_dir() else None)
            (built / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", "utf-8")
            add_static_vectors(built, progress)
            install_model(built, model_dir / name, Path(scratch) / "replaced")
    except OSError as error:
        raise FetchFailed(f"the embedding model could not be written to {model_dir}: {error}") from error
    agreement = manifest["cosine_agreement"]
    progress(f"cosine agreement with the original: {agreement['mean']:.4f} on average over {agreement['texts']} texts")
    return manifest


def _hub_name(source: str) -> str:
    """Return the name if it may be one and the hub can be reached. Raises `FetchFailed` within seconds."""
    if not HUB_NAME.fullmatch(source):
        raise FetchFailed(f"there is no folder {source}, expected the folder of a sentence-transformers model")
    if any(name.lower() in ("https_proxy", "all_proxy") for name in os.environ):
        return source  # the hub's own client asks the proxy
    hub = os.environ.get("HF_ENDPOINT") or HUB
    address = urlsplit(hub)
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise FetchFailed(
            f"there is no folder {source}, and the hub {hub} cannot be reached from here ({error}): expected the "
            "folder of a sentence-transformers model"
        ) from None
    return source


def _convert(python: Path, source: str, built: Path, name: str, prompt: str | None) -> None:
    script = Path(__file__).with_name("convert.py")
    command: list[str | Path] = [python, "-I", script, source, built, name]
    if prompt is not None:
        command.append(f"--prompt={prompt}")
    environ = {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    if Path(source).is_dir():
        environ["HF_HUB_OFFLINE"] = "1"
    run_step("the model could not be converted", command, CONVERT_TIMEOUT_S, environ)


def _manifest(built: Path, source: str, folder: Path | None) -> dict[str, Any]:
    """Return the manifest: the report of the script, the source of the weights, and the digests of the files."""
    report = built / "export.json"
    exported = json.loads(report.read_text("utf-8"))
    report.unlink()
    about: dict[str, Any] = {"name": source}
    if folder is not None:
        about = {"name": folder.resolve().name, "sha256": _digests_of_weights(folder)}
        card = folder / "README.md"
        licence = LICENCE.search(card.read_text("utf-8", "replace")[:4096]) if card.is_file() else None
        exported["licence"] = licence.group(1).strip() if licence else None
    return {**exported, "source": about, "files": digests_of(built)}


def _digests_of_weights(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".safetensors", ".bin") and file.is_file())
    return {str(file.relative_to(folder)): sha256_of(file) for file in files}
