"""The Helm chart by Helm's own engine, and what it makes against the schemas of Kubernetes. Nothing asks a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "nearhit"
TOOLS = Path(sys.prefix).parent / ".venv-deploy"
# The operators' own schemas are in no package registry. These hold what is used of them, strictly.
OPERATORS: dict[str, Any] = json.loads(Path(__file__).with_name("operators.json").read_text())
OLDEST, NEWEST = "1.30.0", "1.37.0"  # the chart's `kubeVersion`, and the newest that has schemas

ENDPOINT: dict[str, Any] = yaml.safe_load((CHART / "examples" / "endpoint.yaml").read_text())
TRITON: dict[str, Any] = yaml.safe_load((CHART / "examples" / "triton.yaml").read_text())
EMBEDDED = {"replicas": 1, "config": {"store": {"url": "embedded"}}}
SUPPORT = """# told apart
version: 1
routes:
  - name: support
    match: {headers: {x-app: support}}
    route: {backend: main}
"""
CLUSTER: dict[str, Any] = {
    "config": {"store": {"url": "redis+cluster://n1:6379,n2:6379"}},
    "autoscaling": {"keda": {"jobStream": {"scaler": "redis-cluster-streams", "address": "n1:6379,n2:6379"}}},
}
SCALED = {"by": "hpa", "inflightPerReplica": 64, "queuedJobsPerReplica": 100}


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges `-f` files: sections key by key, all else whole."""
    both = dict(values)
    for key, value in more.items():
        nested = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = merged(both[key], value) if nested else value
    return both


GOOD: dict[str, dict[str, Any]] = {
    "endpoint": ENDPOINT,
    "triton": TRITON,
    "one": merged(ENDPOINT, EMBEDDED),
    "deployment": merged(ENDPOINT, {"persistence": {"enabled": False}, "autoscaling": SCALED}),
    "tls": merged(
        TRITON,
        {
            "config": {"server": {"tls": {"certificate": "/tls/tls.crt", "key": "/tls/tls.key"}}},
            "volumes": [{"name": "tls", "secret": {"secretName": "nearhit-tls"}}],
            "volumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
            "restartOnPolicyChange": True,
            "triton": {
                "gpu": {"sharing": "timeSlicing", "migProfile": ""},
                "secretEnv": {"HF_TOKEN": {"name": "w", "key": "t"}},
            },
            "env": {"NEARHIT_STORE__TIMEOUT": "500ms"},
            "topologySpread": {"topology.kubernetes.io/zone": None},
        },
    ),
    "clients": merged(
        ENDPOINT, {"config": {"server": {"tls": {"certificate": "/t/c", "key": "/t/k", "client_ca": "/t/ca"}}}}
    ),
    "sentinel": merged(
        TRITON,
        {
            "networkPolicy": {"enabled": False},
            "podDisruptionBudget": {"enabled": False},
            "image": {"digest": "sha256:" + "a" * 64, "pullSecrets": [{"name": "registry"}]},
            "triton": {"gpu": {"sharing": "none", "migProfile": ""}},
            "config": {"index": {"max_entries": 5_000_000}, "store": {"max_entries": 4_000_000}},
            "autoscaling": {
                "keda": {"jobStream": {"scaler": "redis-sentinel-streams", "metadata": {"sentinelMaster": "m"}}}
            },
        },
    ),
    "cluster": merged(TRITON, CLUSTER),
    "cluster by a variable": merged(
        TRITON,
        {
            **CLUSTER,
            "config": {"store": {"url": "${STORE_URL}"}},
            "env": {"STORE_URL": CLUSTER["config"]["store"]["url"]},
        },
    ),
    "policy": merged(ENDPOINT, {"policies": {"support.yaml": SUPPORT}}),
}
# What is refused, and a piece of the sentence that says so.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "defaults alone": ({}, "config.backends: none is given"),
    "no policies": ({key: value for key, value in ENDPOINT.items() if key != "policies"}, "policies: none is given"),
    "two that share nothing": (merged(ENDPOINT, {"config": {"store": None}}), "expected a redis:// URL"),
    "a store that forgets": (merged(ENDPOINT, {**EMBEDDED, "persistence": {"enabled": False}}), "persistence.enabled"),
    "unreachable": (merged(ENDPOINT, {"config": {"server": {"listen": "127.0.0.1:8080"}}}), "config.server.listen"),
    "cut short": (merged(ENDPOINT, {"terminationGracePeriodSeconds": 30}), "expected at least 55"),
    "a token from nowhere": (
        merged(ENDPOINT, {"secretEnv": {"NEARHIT_ADMIN_TOKEN": None}}),
        "names NEARHIT_ADMIN_TOKEN",
    ),
    "nothing to scale by": (merged(ENDPOINT, {"autoscaling": {"by": "hpa", "cpuPercent": 0}}), "expected cpuPercent"),
    "mig of no size": (merged(TRITON, {"triton": {"gpu": {"migProfile": ""}}}), "triton.gpu.migProfile"),
    "no models": ({**TRITON, "triton": {"enabled": True}}, "triton.modelVolume"),
    "a stream of no store": (
        merged(TRITON, {"autoscaling": {"keda": {"jobStream": {"address": ""}}}}),
        "expected HOST:PORT",
    ),
    "streams of one server in a cluster": (
        merged(TRITON, {"config": CLUSTER["config"]}),
        "expected redis-cluster-streams with a redis+cluster:// URL",
    ),
    "streams of a cluster on one server": (
        merged(TRITON, {"autoscaling": CLUSTER["autoscaling"]}),
        "expected redis-cluster-streams with a redis+cluster:// URL",
    ),
    "a typing error": (merged(ENDPOINT, {"persistence": {"enable": False}}), "enable"),
    "a wrong word": (merged(ENDPOINT, {"autoscaling": {"by": "vpa"}}), "autoscaling/by"),
    "a secret in clear": (merged(ENDPOINT, {"secretEnv": {"REDIS_PASSWORD": "hunter2"}}), "secretEnv/REDIS_PASSWORD"),
}
REQUESTS = {**GOOD, **{name: values for name, (values, _) in BAD.items()}}


@dataclass(frozen=True, slots=True)
class Rendered:
    """`answers` by the names of `REQUESTS`; `manifests`: what `make manifests` would write below deploy/kubernetes."""

    answers: Mapping[str, Mapping[str, Any]]
    manifests: Mapping[str, str]

    def documents(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        answer = self.answers[name]
        assert "error" not in answer, answer
        return [document for document in answer["documents"] if kind in ("", document["kind"])]

    def one(self, name: str, kind: str, suffix: str = "") -> dict[str, Any]:
        (found,) = [
            each for each in self.documents(name, kind) if each["metadata"]["name"] == f"inference-nearhit{suffix}"
        ]
        return found

    def gateway(self, name: str) -> dict[str, Any]:
        """The pod of the gateways."""
        (found,) = [
            each
            for kind in ("StatefulSet", "Deployment")
            for each in self.documents(name, kind)
            if each["metadata"]["name"] == "inference-nearhit"
        ]
        template: dict[str, Any] = found["spec"]["template"]
        return template


def render_all(requests: Mapping[str, Mapping[str, Any]]) -> Rendered:
    if not (TOOLS / ".requirements").is_file():
        pytest.skip("Helm is not there: `make deploy-tools` fetches it")
    asked = [{"values": values, "name": "inference", "namespace": "models"} for values in requests.values()]
    written = json.loads(_tool(DEPLOY / "helm" / "render.py", asked))
    return Rendered(dict(zip(requests, written["answers"], strict=True)), written["manifests"])


def faults(documents: Sequence[Mapping[str, Any]], version: str) -> list[str]:
    """What Kubernetes of that version, and the operators, would refuse of the shape of these documents."""
    ours = list({json.dumps(each): each for each in documents if each["kind"] not in OPERATORS}.values())
    found = json.loads(_tool(Path(__file__).with_name("validate.py"), {"version": version, "documents": ours}))
    for each in documents:
        if each["kind"] in OPERATORS:
            schema = {"$defs": OPERATORS["$defs"], **OPERATORS[each["kind"]]}
            said = jsonschema.Draft202012Validator(schema).iter_errors(each)
            found += [f"{each['kind']}: {error.json_path}: {error.message}" for error in said]
    return list(found)


def _tool(script: Path, asked: object) -> str:
    done = subprocess.run(
        [sys.executable, script],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
