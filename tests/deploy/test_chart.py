"""The Helm chart: rendered, linted, held against schemas, what it writes loaded by the gateway. No cluster is asked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.adapters.redis.keyspace import CLUSTERED, ONE_SERVER
from gateway.config.load import load_config
from gateway.config.policy.check import check
from gateway.config.units import parse_duration
from gateway.priority import Priority
from tests.deploy.charts import BAD, CHART, GOOD, NEWEST, OLDEST, Rendered, faults
from tests.deploy.test_deploy import NAME, exported
from tests.deploy.test_systemd import STORE_STOPS_S

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

ROOT = Path(__file__).parents[2]
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
ROW = re.compile(r"^\| `([^`]+)` \| (?:`([^`]+)`|below) \|", re.MULTILINE)


@pytest.mark.parametrize("name", GOOD)
def test_lint_has_nothing_to_say_but_of_an_icon(charts: Rendered, name: str) -> None:
    said = [each for each in charts.answers[name]["lint"] if each["severity"] > 1]
    assert said == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_what_it_makes_has_the_shape_that_kubernetes_and_the_operators_want(charts: Rendered, version: str) -> None:
    assert faults([document for name in GOOD for document in charts.documents(name)], version) == []


def test_the_schemas_would_find_a_fault(charts: Rendered) -> None:
    pod = charts.one("endpoint", "StatefulSet")
    wrong = {**pod, "spec": {**pod["spec"], "replica": 3}}
    scaled = charts.one("triton", "ScaledObject")
    trigger = {**scaled["spec"]["triggers"][-1], "metadata": {"stream": "s", "pendingEntriesCount": "3"}}
    assert len(faults([wrong, {**scaled, "spec": {**scaled["spec"], "triggers": [trigger]}}], NEWEST)) == 2


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_refused_in_a_sentence(charts: Rendered, name: str) -> None:
    assert BAD[name][1] in charts.answers[name].get("error", "it was accepted")


@pytest.mark.parametrize("name", GOOD)
def test_the_gateway_finds_no_fault_with_its_configuration(charts: Rendered, name: str, tmp_path: Path) -> None:
    config = charts.one(name, "ConfigMap", "-config")["data"]["config.yaml"]
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "policies").mkdir()
    for file, text in charts.one(name, "ConfigMap", "-policies")["data"].items():
        (tmp_path / "policies" / file).write_text(text)
    (container,) = charts.gateway(name)["spec"]["containers"]
    environ = {each["name"]: each.get("value", "s3cret") for each in container["env"]}
    result = check([], tmp_path / "config.yaml", environ)
    assert [str(fault) for fault in (*result.faults, *result.warnings)] == []
    loaded = load_config(tmp_path / "config.yaml", environ)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    grpc = {} if loaded.server.grpc is None else {"grpc": loaded.server.grpc.port}
    assert ports == {"data": loaded.server.listen.port, "admin": loaded.server.admin.port, **grpc}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["state"] == str(loaded.data_dir)
    assert mounts["policies"] == "/etc/nearhit/policies"
    assert container["args"] == ["serve", "--config", mounts["config"]]


@pytest.mark.parametrize("name", GOOD)
def test_a_pod_may_take_as_long_as_its_requests(charts: Rendered, name: str) -> None:
    server = yaml.safe_load(charts.one(name, "ConfigMap", "-config")["data"]["config.yaml"])["server"]
    pod = charts.gateway(name)["spec"]
    before_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    ports = 1 + ("grpc" in server)  # one after the other: gateway/app.py
    assert (
        pod["terminationGracePeriodSeconds"]
        > before_s + ports * parse_duration(server["drain_timeout"]) + STORE_STOPS_S
    )


def pods(charts: Rendered, name: str) -> Iterator[dict[str, Any]]:
    for document in charts.documents(name):
        if document["kind"] in ("StatefulSet", "Deployment"):
            yield document["spec"]["template"]["spec"]
        elif document["kind"] == "Pod":
            yield document["spec"]


@pytest.mark.parametrize("name", GOOD)
def test_pods_keep_to_the_restricted_standard_and_have_no_token(charts: Rendered, name: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    for pod in pods(charts, name):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
        assert all(set(volume) - {"name"} <= allowed for volume in pod.get("volumes", []))
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security.get("readOnlyRootFilesystem") is True or container["name"] == "triton"
            assert {"requests", "limits"} <= set(container["resources"])
    user = re.findall(r"--uid (\d+)", (ROOT / "deploy" / "Dockerfile").read_text())
    assert [str(charts.gateway(name)["spec"]["securityContext"]["runAsUser"])] == user


@pytest.mark.parametrize("name", GOOD)
def test_secrets_are_named_and_never_written(charts: Rendered, name: str) -> None:
    assert charts.documents(name, "Secret") == []
    for container in [container for pod in pods(charts, name) for container in pod["containers"]]:
        for variable in container.get("env", []):
            assert set(variable) == {"name", "valueFrom" if "SECRET" in str(variable).upper() else "value"}


@pytest.mark.parametrize("name", GOOD)
def test_everything_that_is_selected_is_there(charts: Rendered, name: str) -> None:
    labels = [
        (document["spec"]["template"] if "template" in document.get("spec", {}) else document)["metadata"].get(
            "labels", {}
        )
        for document in charts.documents(name)
    ]
    for document in charts.documents(name):
        spec = document.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector"))
        if selector is None:
            continue
        wanted = selector.get("matchLabels", selector).items()
        assert [each for each in labels if wanted <= each.items()], document["metadata"]["name"]
    scaled = [
        each["spec"]["scaleTargetRef"] for each in charts.documents(name) if "scaleTargetRef" in each.get("spec", {})
    ]
    for target in scaled:
        assert "replicas" not in charts.one(name, target["kind"])["spec"]


def test_disk_decides_the_kind_of_the_workload(charts: Rendered) -> None:
    claims = charts.one("endpoint", "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert [claim["metadata"]["name"] for claim in claims] == ["state"]
    assert charts.documents("deployment", "StatefulSet") == []
    volumes = {volume["name"]: volume for volume in charts.gateway("deployment")["spec"]["volumes"]}
    assert "emptyDir" in volumes["state"]


def test_probes_go_where_something_answers(charts: Rendered) -> None:
    def probes(name: str) -> list[dict[str, Any]]:
        (container,) = charts.gateway(name)["spec"]["containers"]
        return [container[f"{which}Probe"] for which in ("startup", "liveness", "readiness")]

    assert [probe["httpGet"]["path"] for probe in probes("endpoint")] == ["/healthz", "/healthz", "/readyz"]
    assert probes("triton")[0]["grpc"] == {"port": 8081}
    assert [probe["httpGet"]["scheme"] for probe in probes("tls")] == ["HTTPS"] * 3
    assert [probe["tcpSocket"] for probe in probes("clients")] == [{"port": "data"}] * 3


def test_a_changed_configuration_replaces_pods_and_a_changed_policy_only_where_asked(charts: Rendered) -> None:
    def checksums(name: str) -> dict[str, str]:
        annotations = charts.gateway(name)["metadata"]["annotations"]
        return {key: value for key, value in annotations.items() if key.startswith("checksum/")}

    assert set(checksums("endpoint")) == {"checksum/config"}
    assert checksums("endpoint") == checksums("policy")
    assert checksums("endpoint") != checksums("one")
    assert set(checksums("tls")) == {"checksum/config", "checksum/policies"}
    assert "# told apart" in charts.one("policy", "ConfigMap", "-policies")["data"]["support.yaml"]


def test_rules_and_dashboard_are_those_of_deploy_and_find_the_job_they_name(charts: Rendered) -> None:
    groups = charts.one("triton", "PrometheusRule")["spec"]["groups"]
    files = [ROOT / "deploy" / "prometheus" / f"{kind}.rules.yml" for kind in ("recording", "alerts")]
    assert groups == [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    dashboard = charts.one("triton", "ConfigMap", "-dashboard")["data"]["nearhit.json"]
    assert dashboard.strip() == (ROOT / "deploy" / "grafana" / "dashboards" / "nearhit.json").read_text().strip()
    (endpoint,) = charts.one("triton", "ServiceMonitor")["spec"]["endpoints"]
    assert {"targetLabel": "job", "replacement": "nearhit"} in endpoint["relabelings"]
    assert 'job="nearhit"' in str(groups)
    assert endpoint["authorization"]["credentials"] == {"name": "nearhit", "key": "admin-token"}


def test_the_scaler_reads_the_streams_of_all_priorities_by_their_length(charts: Rendered) -> None:
    triggers = charts.one("triton", "ScaledObject")["spec"]["triggers"]
    streams = [each["metadata"] for each in triggers if each["type"] == "redis-streams"]
    assert [each["stream"] for each in streams] == [
        ONE_SERVER.key(f"jobs:stream:{priority.value}") for priority in sorted(Priority)
    ]
    assert not any("consumerGroup" in each for each in streams)
    (account,) = charts.documents("triton", "TriggerAuthentication")
    assert {each["authenticationRef"]["name"] for each in triggers if "authenticationRef" in each} == {
        account["metadata"]["name"]
    }
    sentinel = charts.one("sentinel", "ScaledObject")["spec"]["triggers"][-1]["metadata"]
    assert (sentinel["addresses"], sentinel["sentinelMaster"]) == ("valkey:6379", "m")
    cluster = [each["metadata"] for each in charts.one("cluster", "ScaledObject")["spec"]["triggers"]]
    assert [each["stream"] for each in cluster if "stream" in each] == [
        CLUSTERED.key(f"jobs:stream:{priority.value}") for priority in sorted(Priority)
    ]


def test_queries_that_are_scaled_by_name_series_that_exist(charts: Rendered) -> None:
    triggers = charts.one("triton", "ScaledObject")["spec"]["triggers"]
    queries = [each["metadata"]["query"] for each in triggers if each["type"] == "prometheus"]
    named = {name for query in queries for name in re.findall(NAME, query)}
    assert named == {"nearhit_backend_inflight", "nearhit_backend_queued", "nearhit_jobs"} & set(exported())


def test_the_autoscaler_asks_for_what_the_adapter_gives(charts: Rendered) -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "prometheus-adapter.yaml").read_text())["rules"]
    given = {kind: {rule["name"]["as"] for rule in rules[kind]} for kind in ("custom", "external")}
    metrics = charts.one("deployment", "HorizontalPodAutoscaler")["spec"]["metrics"]
    asked = {each["type"]: each[each["type"].lower()].get("metric", {}).get("name") for each in metrics}
    assert set(asked) == {"Resource", "Pods", "External"}
    assert asked["Pods"] in given["custom"]
    assert asked["External"] in given["external"]


@pytest.mark.parametrize(
    ("name", "resource"),
    [("triton", "nvidia.com/mig-3g.40gb"), ("tls", "nvidia.com/gpu.shared"), ("sentinel", "nvidia.com/gpu")],
)
def test_a_gpu_is_asked_for_by_how_it_is_shared(charts: Rendered, name: str, resource: str) -> None:
    (container,) = charts.one(name, "StatefulSet", "-triton")["spec"]["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert [key for key in limits if key.startswith("nvidia.com")] == [resource]
    assert limits["memory"] == "64Gi"


def test_a_triton_of_the_chart_is_reached_by_the_name_that_the_example_has(charts: Rendered) -> None:
    triton = charts.one("triton", "StatefulSet", "-triton")
    host = f"{triton['metadata']['name']}-0.{triton['spec']['serviceName']}"
    config = yaml.safe_load(charts.one("triton", "ConfigMap", "-config")["data"]["config.yaml"])
    assert {backend["url"] for backend in config["backends"].values()} == {f"grpc://{host}:8001"}
    (container,) = triton["spec"]["template"]["spec"]["containers"]
    for backend in config["backends"].values():
        assert f"--load-model={backend['model']}" in container["args"]


def test_the_admin_port_is_closed_to_pods_until_somebody_is_named(charts: Rendered) -> None:
    ports = [
        [port["port"] for port in rule["ports"]] for rule in charts.one("endpoint", "NetworkPolicy")["spec"]["ingress"]
    ]
    assert ports == [["data"]]
    policy = charts.one("triton", "NetworkPolicy")["spec"]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]] == [["data", "grpc"], ["admin"]]
    assert all(rule["from"] for rule in policy["ingress"])
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def at(path: str) -> Any:
    value: Any = VALUES
    for key in path.split("."):
        value = value[key]
    return value


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_every_value_is_documented_with_its_default() -> None:
    rows = dict(ROW.findall((CHART / "README.md").read_text()))
    whole = [path for path, default in rows.items() if default]
    assert [
        leaf for leaf in leaves(VALUES) if not any(leaf == each or leaf.startswith(f"{each}.") for each in whole)
    ] == []
    assert {path: yaml.safe_load(default) for path, default in rows.items() if default} == {p: at(p) for p in whole}
    assert len(rows) == len(ROW.findall((CHART / "README.md").read_text()))


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (chart["name"], chart["appVersion"]) == (project["name"], project["version"])
    assert OLDEST.rpartition(".")[0] in chart["kubeVersion"]


def test_notes_say_where_it_is(charts: Rendered) -> None:
    assert "http://inference-nearhit.models/v1" in charts.answers["endpoint"]["notes"]
    assert "https://inference-nearhit.models/v1" in charts.answers["tls"]["notes"]
    assert "networkPolicy.adminFrom" in charts.answers["endpoint"]["notes"]
    assert "networkPolicy.adminFrom" not in charts.answers["triton"]["notes"]
