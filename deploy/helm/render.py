"""Renders and lints the chart, without a cluster or the network. `make deploy-tools` fetches `helm_python`.

render.py --manifests   writes what deploy/kubernetes has of the chart anew
render.py               for tests: reads [{"values": ..., "name": ..., "namespace": ...}, ...] from standard input,
                        writes for each {"documents", "notes", "lint"}, or {"error"}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).parent / "nearhit"
KUBERNETES = Path(__file__).parents[1] / "kubernetes"
HEAD = "# Written by `make manifests` from the chart in deploy/helm; change it there, or patch it in an overlay.\n"
NAME = "nearhit"
AUTOSCALING = {"autoscaling": {"by": "hpa", "inflightPerReplica": 64, "queuedJobsPerReplica": 100}}
KEDA = {
    "autoscaling": {
        **AUTOSCALING["autoscaling"],
        "by": "keda",
        "keda": {
            "jobStream": {
                "enabled": True,
                "address": "valkey:6379",
                "password": {"name": NAME, "key": "store-password"},
            }
        },
    }
}
MONITORING = {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}


def rendered(values: dict[str, Any], name: str = NAME, namespace: str = "default") -> tuple[list[dict[str, Any]], str]:
    """The documents, and what Helm says after an installation. Raises `helm_python.HelmError`."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name=name, namespace=namespace)
    notes = next(text for path, text in files.items() if path.endswith("NOTES.txt"))
    documents = [
        document
        for path, text in sorted(files.items())
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]
    return documents, notes


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        documents, notes = rendered(**request)
    except helm_python.HelmError as error:
        return {"error": str(error)}
    lint = helm_python.lint(CHART, request["values"], strict=True)
    return {"documents": documents, "notes": notes, "lint": lint["messages"]}


def manifests() -> Iterator[tuple[str, str]]:
    """Path below deploy/kubernetes -> its text. The configuration is a file of its own, which Kustomize hashes."""
    example = yaml.safe_load((CHART / "examples" / "endpoint.yaml").read_text())
    documents, _ = rendered(example)
    gateway = []
    for document in map(_without_helm, documents):
        kind, name = document["kind"], document["metadata"]["name"]
        if kind == "ConfigMap":
            for file, text in document["data"].items():
                yield (f"base/policies/{file}" if name.endswith("-policies") else f"base/{file}"), text
        elif kind != "Pod":
            gateway.append(document)
    yield "base/gateway.yaml", yaml.safe_dump_all(gateway, sort_keys=False)
    for folder, more, kinds in (
        ("hpa", AUTOSCALING, {"HorizontalPodAutoscaler"}),
        ("keda", KEDA, {"ScaledObject", "TriggerAuthentication"}),
        ("monitoring", MONITORING, {"ServiceMonitor", "PrometheusRule"}),
    ):
        found = [_without_helm(document) for document in rendered({**example, **more})[0] if document["kind"] in kinds]
        text = yaml.safe_dump_all(found, sort_keys=False)
        yield f"{folder}/{folder}.yaml", text.replace('namespace="default"', 'job="nearhit"')  # an overlay says where


def _without_helm(document: dict[str, Any]) -> dict[str, Any]:
    labels = document["metadata"]["labels"]
    for name in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
        del labels[name]
    document.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {}).pop("checksum/config", None)
    return document


def main() -> None:
    if sys.argv[1:] == ["--manifests"]:
        for path, text in manifests():
            file = KUBERNETES / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(HEAD + text)
        return
    requests = json.load(sys.stdin)
    written = {"answers": [answer(request) for request in requests], "manifests": dict(manifests())}
    json.dump(written, sys.stdout)


if __name__ == "__main__":
    main()
