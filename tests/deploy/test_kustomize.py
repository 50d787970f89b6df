"""deploy/kubernetes: what the chart makes, and overlays on it, built by kubectl. No cluster is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.policy.check import check
from tests.deploy.charts import DEPLOY, NEWEST, OLDEST, Rendered, faults
from tests.fixtures.debian import program

KUBERNETES = DEPLOY / "kubernetes"
OVERLAY = KUBERNETES / "overlays" / "example"


def built(folder: Path) -> list[dict[str, Any]]:
    kubectl = program("kubectl", "kubernetes-client")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def test_what_lies_there_is_what_the_chart_makes(charts: Rendered) -> None:
    """If not: `make manifests`."""
    head = "# Written by `make manifests`"
    written = {path.relative_to(KUBERNETES).as_posix(): path.read_text() for path in KUBERNETES.rglob("*.yaml")}
    found = {path: text.partition("\n")[2] for path, text in written.items() if text.startswith(head)}
    assert found == charts.manifests


@pytest.mark.parametrize("folder", ["base", "overlays/example"])
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_it_builds_and_has_the_shape_that_kubernetes_wants(charts: Rendered, folder: str, version: str) -> None:
    assert faults(built(KUBERNETES / folder), version) == []


def test_every_component_fits_the_base(tmp_path: Path) -> None:
    (tmp_path / "kubernetes").symlink_to(KUBERNETES)
    for name in ("hpa", "keda", "monitoring"):
        folder = tmp_path / name
        folder.mkdir()
        where = Path("..") / "kubernetes"
        text = {"resources": [f"{where / 'base'}"], "components": [f"{where / name}"]}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(text))
        kinds = {document["kind"] for document in built(folder)}
        assert kinds > {"StatefulSet", "ConfigMap", "NetworkPolicy"}


def test_an_overlay_has_its_own_configuration_which_the_pods_mount(tmp_path: Path) -> None:
    documents = built(OVERLAY)
    maps = {each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"}
    (pod,) = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "StatefulSet"]
    mounted = {volume["name"]: volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert set(mounted.values()) == set(maps)
    assert mounted["policies"] == "nearhit-policies"  # a new name would replace the pods
    assert mounted["config"].startswith("nearhit-config-")
    (tmp_path / "policies").mkdir()
    (tmp_path / "config.yaml").write_text(maps[mounted["config"]]["config.yaml"])
    for name, text in maps[mounted["policies"]].items():
        (tmp_path / "policies" / name).write_text(text)
    environ = {each["name"]: "s3cret" for each in pod["containers"][0]["env"]}
    result = check([], tmp_path / "config.yaml", environ)
    assert [str(fault) for fault in (*result.faults, *result.warnings)] == []
    assert {each["metadata"]["namespace"] for each in documents} == {"models"}


def test_who_is_scaled_has_no_number_of_its_own() -> None:
    documents = built(OVERLAY)
    (workload,) = [each for each in documents if each["kind"] == "StatefulSet"]
    (scaler,) = [each for each in documents if each["kind"] == "HorizontalPodAutoscaler"]
    assert "replicas" not in workload["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]


def test_examples_for_model_servers_have_the_shape_that_is_wanted(charts: Rendered) -> None:
    assert faults(list(yaml.safe_load_all((KUBERNETES / "model-servers.yaml").read_text())), NEWEST) == []
