"""Draw the diagrams of the documentation: `python -m docs.tools.diagrams`, with Graphviz (`apt-get install graphviz`).

The text source of each diagram lies in docs/images/source. The source of the pipeline is written from
`gateway/pipeline.py` first, so that the picture has the steps that run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.pipeline import SHARED, steps_of_any_route

IMAGES = Path(__file__).parents[1] / "images"
SOURCES = IMAGES / "source"
PIPELINE = SOURCES / "pipeline.dot"

_HEAD = """\
// Written by `make diagrams` from gateway/pipeline.py.
digraph pipeline {
  rankdir=TB; bgcolor="white"; pad=0.2; nodesep=0.3; ranksep=0.22; newrank=true
  fontname="Helvetica,Arial,sans-serif"; fontsize=13
  node [fontname="Helvetica,Arial,sans-serif", fontsize=12, shape=box, style="rounded,filled", fillcolor="#f4f6fb",
    color="#5566aa", margin="0.16,0.06", width=3.4]
  edge [fontname="Helvetica,Arial,sans-serif", fontsize=11, color="#444455", fontcolor="#333344", arrowsize=0.6]
  client [group=chain, label="HttpServer, gRPC port", fillcolor="#ffffff"]
  upstream [group=chain, label="UpstreamPool -> Upstream", fillcolor="#ffffff"]
"""
# Steps that may answer by themselves, with the answer that they give.
_ANSWERS = {
    "ExactFastPath": "exact hit",
    "ErrorBoundary": "error, shed",
    "Authenticate": "401, 429",
    "ControlEndpoints": "jobs, feedback",
    "CountRequests": "429",
    "ExactCache": "exact hit, stale",
    "SingleFlight": "coalesced",
    "SemanticCache": "semantic hit",
    "ClusterLease": "coalesced",
    "RateLimit": "429",
}


def pipeline_source() -> str:
    """Return the Graphviz source of the pipeline."""
    shared, of_route = ([(step.name, step.reason) for step in SHARED], steps_of_any_route())
    names = [name for name, _ in (*shared, *of_route)]
    body = [
        *_cluster("shared", "every request", shared),
        *_cluster("route", "the steps of its route (a step that policy turns off is absent)", of_route),
        f"  client -> {' -> '.join(names)} -> upstream",
        *(
            f'  answer_{name} [label="{answer}", shape=plaintext, width=0, fillcolor="#ffffff"]\n'
            f"  {name} -> answer_{name} [style=dashed]; {{ rank=same; {name}; answer_{name} }}"
            for name, answer in _ANSWERS.items()
        ),
    ]
    return _HEAD + "\n".join(body) + "\n}\n"


def _cluster(name: str, title: str, steps: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f'  subgraph cluster_{name} {{ label="{title}"; labeljust=l; style="rounded"; color="#8899cc"'
    for step, reason in steps:
        label = f'<b>{step}</b><br/><font point-size="10">{_escape(reason)}</font>'
        yield f"    {step} [group=chain, label=<{label}>]"
    yield "  }"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def main() -> int:
    PIPELINE.write_text(pipeline_source())
    if shutil.which("dot") is None:
        print("Graphviz is not installed: apt-get install graphviz", file=sys.stderr)
        return 1
    for source in sorted(SOURCES.glob("*.dot")):
        picture = IMAGES / f"{source.stem}.svg"
        subprocess.run(["dot", "-Tsvg", source, "-o", picture], check=True)  # noqa: S603, S607 - our own words
        print(picture.relative_to(IMAGES.parents[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
