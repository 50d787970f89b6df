"""What `deploy/` names exists: metrics, files, services, ports, variables. Docker itself is not asked."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from gateway.config.load import load_config
from gateway.config.policy.check import check
from gateway.config.units import parse_duration
from gateway.observability.metrics import Histogram
from tests.deploy.test_systemd import STORE_STOPS_S
from tests.fixtures.debian import program
from tests.fixtures.metrics import all_metrics

CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "deploy"
SECRETS = {"REDIS_PASSWORD": "a1b2c3", "NEARHIT_ADMIN_TOKEN": "token"}
GATEWAYS = ("gateway-1", "gateway-2")
NAME = r"(?:\w+:)?nearhit_\w+(?::\w+)?"
MODELS = sorted((DEPLOY / "triton" / "models").iterdir())


def exported() -> dict[str, set[str]]:
    """Every series that the gateway exports or a rule records, with its labels."""
    series: dict[str, set[str]] = {}
    for metric in all_metrics():
        labels = set(metric.labels)
        if isinstance(metric, Histogram):
            series |= {
                f"{metric.name}_bucket": labels | {"le"},
                f"{metric.name}_sum": labels,
                f"{metric.name}_count": labels,
            }
        else:
            series[metric.name] = labels
    for rule in rules("recording"):
        level = rule["record"].partition(":")[0]
        series[rule["record"]] = {level}
    return series


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "nearhit.json").read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    """Those that draw something; the others head rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules(kind: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / f"{kind}.rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in [*rules("recording"), *rules("alerts")])


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yaml").read_text())
    return loaded


def target_ports(service: str) -> set[int]:
    return {int(port.rpartition(":")[2]) for port in compose()["services"][service].get("ports", [])}


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_expressions_name_series_and_labels_that_exist(expression: str) -> None:
    series = exported()
    named = re.findall(NAME, re.sub(r'"[^"]*"', "", expression))
    assert named or expression.startswith(("up", "count(ALERTS"))
    labels = set().union(*(series.get(name, {"?"}) for name in named))
    assert [name for name in named if name not in series] == []
    if not named:
        return
    matched = re.findall(r"[{,](\w+)(?:=~|!=|!~|=)", expression)
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    used = {*matched, *(label.strip() for group in grouped for label in group.split(","))} - {"job", "instance"}
    assert used <= labels, f"{used - labels} is no label"
    if "_bucket" in expression:
        assert "le" in used


def test_legends_name_labels_that_exist() -> None:
    series = exported()
    for panel in panels():
        for target in panel["targets"]:
            (name, *_) = re.findall(NAME, target["expr"]) or ["ALERTS"]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= series.get(name, set()), panel["title"]


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(expressions())
    assert [metric.name for metric in all_metrics() if metric.name not in shown] == []


def test_dashboard_panels_do_not_overlap_and_use_the_provisioned_source() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert int(port) in target_ports(host)


def test_grafana_finds_its_dashboards_where_they_are_mounted() -> None:
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/nearhit.yaml").read_text())["providers"]
    grafana = compose()["services"]["grafana"]
    mounts = {inside: outside for outside, inside, *_ in (volume.split(":") for volume in grafana["volumes"])}
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DEPLOY / mounts[provider["options"]["path"]] / home.name).is_file()


def test_configuration_and_policies_have_no_faults() -> None:
    result = check([], DEPLOY / "config.yaml", SECRETS)
    assert list(map(str, result.faults)) == []
    assert list(map(str, result.warnings)) == []
    assert len(result.files) == 2


def test_configuration_names_services_ports_and_models_that_exist() -> None:
    config = load_config(DEPLOY / "config.yaml", SECRETS)
    services = compose()["services"]
    for name in GATEWAYS:
        assert services[name]["hostname"] in config.server.admin_hosts  # what Prometheus calls it
        assert target_ports(name) == {config.server.admin.port}
        mounts = [volume.split(":")[:2] for volume in services[name]["volumes"]]
        assert [name, str(config.data_dir)] in mounts  # each has one of its own
        drain = config.server.drain_timeout + STORE_STOPS_S
        assert parse_duration(services[name]["stop_grace_period"]) >= drain
    assert "@store:6379" in config.store.url
    assert "store" in services
    loaded = {flag.partition("=")[2] for flag in services["triton"]["command"] if flag.startswith("--load-model=")}
    for backend in config.backends.values():
        assert backend.url == "grpc://triton:8001"
        assert backend.model in loaded
        parameters = parsed(DEPLOY / "triton" / "models" / str(backend.model)).parameters
        assert parameters["engine"].string_value in loaded
        assert int(parameters["max_concurrency"].string_value) >= backend.max_concurrency
    assert loaded <= {model.name for model in MODELS}


def test_compose_refers_to_what_exists() -> None:
    document = compose()
    volumes, secrets, services = document["volumes"], document["secrets"], document["services"]
    for name, service in services.items():
        assert re.search(r":[\w.-]*\d", service["image"]) or "build" in service, f"{name}: the image is not pinned"
        for volume in service.get("volumes", []):
            outside = volume.split(":")[0]
            assert (DEPLOY / outside).exists() if outside.startswith(".") else outside in volumes, volume
        assert set(service.get("secrets", [])) <= set(secrets)
        assert set(service.get("depends_on", [])) <= set(services)
    for name in GATEWAYS:
        build = services[name]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    used = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert set(volumes) <= used


def test_compose_asks_for_no_variable_that_the_example_leaves_out() -> None:
    text = (DEPLOY / "docker-compose.yaml").read_text()
    asked = set(re.findall(r"(?<!\$)\$\{(\w+)", text)) | {s["environment"] for s in compose()["secrets"].values()}
    offered = set(re.findall(r"^(\w+)=", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    assert asked == offered
    assert all(set(SECRETS) == set(compose()["services"][name]["environment"]) for name in GATEWAYS)


def test_only_the_data_port_is_open_to_other_machines() -> None:
    published = [(name, port) for name, service in compose()["services"].items() for port in service.get("ports", [])]
    assert [entry for entry in published if not entry[1].startswith("127.0.0.1:")] == [("balancer", "8080:8080")]


def test_prometheus_scrapes_services_that_exist() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    for job in [*document["scrape_configs"], *document["alerting"]["alertmanagers"]]:
        for entry in job["static_configs"]:
            for target in entry["targets"]:
                host, _, port = target.partition(":")
                assert int(port) in target_ports(host), target
    assert [name for name in document["rule_files"] if not (DEPLOY / "prometheus" / name).is_file()] == []
    (secret,) = compose()["services"]["prometheus"]["secrets"]
    assert document["scrape_configs"][0]["authorization"]["credentials_file"] == f"/run/secrets/{secret}"


@pytest.mark.parametrize(
    ("kind", "file"),
    [("config", "prometheus.yml"), ("rules", "alerts.rules.yml"), ("rules", "recording.rules.yml")],
)
def test_promtool_finds_no_fault(kind: str, file: str) -> None:
    promtool = program("promtool", "prometheus")
    options = ["--syntax-only"] if kind == "config" else []  # the token's file exists in the container only
    command = [promtool, "check", kind, *options, str(DEPLOY / "prometheus" / file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_parses_every_expression(tmp_path: Path) -> None:
    promtool = program("promtool", "prometheus")
    concrete = [e.replace("$__rate_interval", "1m").replace("$__range", "1h") for e in expressions()]
    recorded = [{"record": f"parsed:{i}", "expr": expression} for i, expression in enumerate(concrete)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dockerfile_copies_what_exists_and_the_context_lets_through() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    allowed = re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert sources
    for source in sources:
        assert (CHECKOUT / source).exists(), source
        assert any(source == entry or source.startswith(f"{entry}/") for entry in allowed), source
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
    assert set(re.findall(r"--from=(\w+)", text)) <= stages
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["10001:10001"]


def test_dockerfile_finds_the_build_backend_in_the_lock() -> None:
    """Its `sed` takes one entry with all its hashes, and nothing else."""
    (script,) = re.findall(r"sed -n '([^']+)'", (DEPLOY / "Dockerfile").read_text())
    command = ["sed", "-n", script, str(CHECKOUT / "requirements-dev.lock")]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.splitlines()
    assert lines[0].startswith("setuptools==")
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1:])
    assert len(lines) > 1


def parsed(model: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_triton_models_are_complete(model: Path) -> None:
    config = parsed(model)
    assert config.name == model.name
    (group,) = config.instance_group
    assert model_config_pb2.ModelInstanceGroup.Kind.Name(group.kind) == (
        "KIND_CPU" if config.backend == "python" else "KIND_GPU"
    )
    if config.backend == "vllm":
        assert config.model_transaction_policy.decoupled
        arguments = json.loads((model / "1" / "model.json").read_text())
        assert {"model", "gpu_memory_utilization"} <= set(arguments)
    elif config.backend == "python":
        assert config.model_transaction_policy.decoupled
        assert (model / "1" / "model.py").is_file()
        assert config.parameters["prompt"].string_value.count("{prompt}") == 1
    else:
        assert config.HasField("dynamic_batching")
        assert max(config.dynamic_batching.preferred_batch_size) <= config.max_batch_size


def test_engines_on_one_card_leave_room_on_it() -> None:
    shares = [
        json.loads(file.read_text())["gpu_memory_utilization"] for file in DEPLOY.glob("triton/models/*/1/model.json")
    ]
    assert len(shares) == 2
    assert sum(shares) < 0.95


def test_links_stay_within_what_is_mounted_or_packaged() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_symlink():
            assert not path.readlink().is_absolute()
            # Those of the chart are followed when it is loaded.
            within = DEPLOY if DEPLOY / "helm" in path.parents else DEPLOY / "triton" / "models"
            assert path.resolve(strict=True).is_relative_to(within)
