"""A model as an entry of a Triton repository, `NAME/VERSION/`, and the policy that tries it on part of the traffic."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
SERVED = ("model.py", "classifier.py")
ABOUT = "config.json"


def next_version(repository: Path, name: str) -> int:
    """From 1 on: one more than the highest that is there."""
    folder = repository / name
    found = [int(each.name) for each in folder.iterdir() if each.name.isdigit()] if folder.is_dir() else []
    return max(found, default=0) + 1


def assemble(folder: Path, graph: Path, tokenizer: Path, labels: tuple[str, ...], max_tokens: int) -> None:
    """What one version holds, in the empty `folder`, without `accept_above` decided: it answers always."""
    shutil.copy(graph, folder / "model.onnx")
    shutil.copy(tokenizer, folder / "tokenizer.json")
    source = resources.files("gateway.distill.served")
    for module in SERVED:
        (folder / module).write_bytes(source.joinpath(module).read_bytes())
    write_about(folder, labels, max_tokens, 0.0)


def write_about(folder: Path, labels: tuple[str, ...], max_tokens: int, accept_above: float) -> None:
    """The names that `transformers` has for them, so that `adapter: onnx` serves the folder as well."""
    about = {
        "id2label": dict(enumerate(labels)),
        "max_position_embeddings": max_tokens,
        "problem_type": "single_label_classification",
        "accept_above": accept_above,
    }
    (folder / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def publish(built: Path, repository: Path, name: str) -> Path:
    """Copies the folder `built` in as the next version of `name`, which is there whole or not at all; returns it."""
    entry = repository / name
    entry.mkdir(parents=True, exist_ok=True)
    config = resources.files("gateway.distill.served").joinpath("config.pbtxt").read_text()
    if not (entry / "config.pbtxt").exists():
        (entry / "config.pbtxt").write_text(config.replace("NAME", name, 1))
    with tempfile.TemporaryDirectory(prefix=".distill-", dir=repository) as scratch:
        made = Path(shutil.copytree(built, Path(scratch) / "version"))
        made.chmod(0o755)
        return made.replace(entry / str(next_version(repository, name)))


def snippet(name: str, share: int, *, unsure: bool) -> str:
    """What goes into config.yaml and into a policy. `unsure`: the model says so where it does not know."""
    cascade = (
        "\n      cascade: {check: verifier, accept_above: 0}  # it says where it does not know: then `large` answers"
    )
    return f"""# config.yaml
backends:
  {name}: {{adapter: triton, url: grpc://127.0.0.1:8001, model: {name}}}

# policies: `current` is the light model so far, `large` the one that taught
routes:
  - name: default
    match: {{}}
    route:
      light: {{current: {100 - share}%, {name}: {share}%}}
      large: large
      escalate_above: {0 if unsure else 0.5}{cascade if unsure else ""}
"""
