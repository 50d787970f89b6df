"""Writes a model as an entry of a Triton repository, `NAME/VERSION/`, and the policy that tries it on some traffic."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from gateway.model_build.repository import configure, put_version

CANARY = 5  # percent of the traffic in the policy snippet
CALLERS = 4  # processes that call a graph on a GPU, and so the largest batch there
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
SERVED = ("model.py", "classifier.py")
ABOUT = "config.json"


def assemble(folder: Path, graph: Path, tokenizer: Path) -> None:
    """Write the files of one version to the empty `folder`, except for the file of `write_about`."""
    shutil.copy(graph, folder / "model.onnx")
    shutil.copy(tokenizer, folder / "tokenizer.json")
    source = resources.files("gateway.features.distillation.served")
    for module in SERVED:
        (folder / module).write_bytes(source.joinpath(module).read_bytes())


def write_about(
    folder: Path, labels: tuple[str, ...], max_tokens: int, accept_above: float, graph: str | None = None
) -> None:
    """Write `config.json` with the names of `transformers`, so that `adapter: onnx` can serve the folder too.

    `graph` is the model of the repository from which Triton gets the logits. None means the graph of the folder, on
    the CPU.
    """
    about = {
        "id2label": dict(enumerate(labels)),
        "max_position_embeddings": max_tokens,
        "problem_type": "single_label_classification",
        "accept_above": accept_above,
    }
    if graph is not None:
        about["graph"] = graph
    (folder / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def write_report(folder: Path, report: dict[str, Any], text: str) -> None:
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.md").write_text(text)


def publish(built: Path, repository: Path, name: str, instances: int = 1) -> Path:
    """Publish the folder `built` atomically as the next version of `name`, and return the version's folder."""
    _configure(repository / name, "config.pbtxt", NAME=name, INSTANCES=str(instances))
    return put_version(built, repository, name)


def publish_graph(graph: Path, repository: Path, name: str, labels: int, precision: str) -> Path:
    """Publish `graph` alone, for Triton's onnxruntime backend with TensorRT, and return the version's folder."""
    _configure(repository / name, "graph.pbtxt", NAME=name, LABELS=str(labels), PRECISION=precision.upper())
    with tempfile.TemporaryDirectory(prefix="nearhit-distill-") as scratch:
        shutil.copy(graph, Path(scratch) / "model.onnx")
        return put_version(Path(scratch), repository, name)


def _configure(entry: Path, source: str, **words: str) -> None:
    config = Template(resources.files("gateway.features.distillation.served").joinpath(source).read_text())
    configure(entry, config.substitute(words))


def snippet(name: str, share: int, *, unsure: bool) -> str:
    """Return the snippets for config.yaml and a policy. An `unsure` model may answer that it does not know."""
    backend = f"adapter: triton, url: grpc://127.0.0.1:8001, model: {name}"
    if not unsure:
        return _snippet(name, backend, share, "escalate_above: 0.5")
    cascade = "cascade: {check: verifier, accept_above: 0}  # if it does not know, `large` answers"
    return _snippet(name, backend, share, "escalate_above: 0", cascade)


def _snippet(name: str, backend: str, share: int, *choice: str) -> str:
    """Fill in the snippet. `choice` has the lines of the route that decide when the large model is called."""
    chosen = "\n      ".join(choice)
    return f"""# config.yaml
backends:
  {name}: {{{backend}}}

# policies: `current` is the present light model, `large` the teacher
routes:
  - name: default
    match: {{}}
    route:
      light: {{current: {100 - share}%, {name}: {share}%}}
      large: large
      {chosen}
"""
