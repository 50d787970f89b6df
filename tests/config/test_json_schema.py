"""The published JSON Schemas: made from the code, and never against what the gateway takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.__main__ import main
from gateway.cli.json_schema import config_schema, policy_schema
from gateway.config.errors import ConfigInvalid
from gateway.config.load import read_config
from gateway.config.policy.load import PolicySource, read_policy
from gateway.config.yaml_loader import load_yaml

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

ROOT = Path(__file__).parents[2]
TESTDATA = Path(__file__).parent / "testdata"
SCHEMAS = {"policy": policy_schema, "config": config_schema}


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMAS[kind]())


def read(content: bytes) -> Any:
    return load_yaml(content, "file", None).value


@pytest.mark.parametrize("kind", SCHEMAS)
def test_what_is_published_is_what_the_code_says(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails: `make schema`."""
    assert main(["schema", kind]) == 0
    assert (ROOT / "docs" / "schema" / f"{kind}.json").read_text() == capsys.readouterr().out


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_schema_is_one(kind: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[kind]())


def keys_of(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every key of every section, with its schema."""
    for section in [schema, *schema["$defs"].values()]:
        yield from section.get("properties", {}).items()


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_key_has_a_description_and_a_default_that_is_valid(kind: str) -> None:
    schema = SCHEMAS[kind]()
    for key, form in keys_of(schema):
        assert form.get("description"), key
        if "default" in form:
            Draft202012Validator({**form, "$defs": schema["$defs"]}).validate(form["default"])


def test_a_description_says_how_to_write_the_value() -> None:
    properties = policy_schema()["$defs"]["ExactRule"]["properties"]
    assert properties["ttl"]["description"].endswith("Write a duration such as 250ms, 30s, 5m, 24h or 7d.")


def test_what_the_repository_ships_is_valid() -> None:
    for path in (ROOT / "policies").rglob("*.yaml"):
        assert list(validator("policy").iter_errors(read(path.read_bytes()))) == []
    for path in (ROOT / "config.yaml", TESTDATA / "good" / "config.yaml"):
        assert list(validator("config").iter_errors(read(path.read_bytes()))) == []


def documents(key: str) -> list[str]:
    """Every policy or configuration that a test or a page has as text."""
    pages = [path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))]
    blocks = [block for page in pages for block in re.findall(r'"""\\?\n?(version: 1\n.*?)"""', page, re.DOTALL)]
    return [block for block in blocks if f"\n{key}:" in block]


def test_no_policy_that_loads_is_refused() -> None:
    check, held = validator("policy"), 0
    for block in documents("routes"):
        if read_policy([PolicySource("p.yaml", block.encode())], ()).policy is None:
            continue
        assert list(check.iter_errors(read(block.encode()))) == [], block
        held += 1
    assert held > 15


FORMS = [
    "cache: {exact: off, semantic: 'off'}",
    "cache: {semantic: {ttl: 1h, max_wrong_hits: 0.01, audit: {share: 2%, judge: x}}, jitter: 0, fresh_ids: on}",
    "cache: {admit: {max_size: 64KiB, roles: [user], tools: 'on'}}",
    "limits: {requests: 600/min, cost: {per_day: 20 USD, then: refuse}}",
    "limits: [{requests: [20/s, {rate: 600/min, burst: 50}]}, {per: user, tokens: {rate: 1M/day}}]",
    "record: on",
]  # fmt: skip
TARGETS = [
    "backend: {a: 95%, b: 5%}",
    "light: a, large: {b: 0.5, c: 50%}, escalate_above: [0.3], fallback: [d], latency_budget: 800ms",
    "tiers: [a, {b: 50%, c: 50%}, d], escalate_above: [0.3, 0.7], audit: 2%, "
    "cascade: {check: logprobs, accept_above: 0.7}",
    "light: a, large: b, complexity: {adapter: http, url: 'http://127.0.0.1:7000/classify'}",
    "light: a, large: b, complexity: {adapter: triton, url: 'grpc://127.0.0.1:8001', model: m, timeout: 20ms}",
    "light: a, large: b, quality: 0.95, learn: off, confidence: 99%, shadow: {backend: c, share: 1%}",
]


@pytest.mark.parametrize("more", [*(f"    {form}" for form in FORMS), *TARGETS])
def test_every_way_of_writing_is_valid(more: str) -> None:
    target, rest = (more, "") if not more.startswith(" ") else ("light: a, large: b", more)
    if "audit: 2%, cascade" in more:
        rest = "    cache: {exact: {ttl: 1h}}"
    document = f"version: 1\nroutes:\n  - name: r\n    match: {{}}\n    route: {{{target}}}\n{rest}\n".encode()
    reading = read_policy([PolicySource("p.yaml", document)], ())
    assert reading.faults == ()
    assert list(validator("policy").iter_errors(read(document))) == []


def test_variables_of_a_configuration_are_valid() -> None:
    document = {
        "version": 1,
        "server": {"listen": "${HOST}:8080", "max_inflight": "${N}", "max_body": "${SIZE}"},
        "backends": {"main": {"adapter": "openai", "url": "${URL}"}},
    }
    assert list(validator("config").iter_errors(document)) == []


def test_what_is_refused_has_a_fault_and_most_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTDATA)
    seen, unseen = [], []
    for path in sorted(TESTDATA.glob("*.yaml")):
        kind = "config" if path.name.startswith("config-") else "policy"
        try:
            value = load_yaml(path.read_bytes(), path.name, None if kind == "policy" else {}).value
        except ConfigInvalid:
            continue  # no editor reads it either
        refused = not validator(kind).is_valid(json.loads(json.dumps(value)))
        (seen if refused else unseen).append(path.name)
        if kind == "config":
            assert read_config(path, {}).faults
    # The others are contradictions between keys, references, order, and what YAML itself cannot say.
    assert len(seen) > len(unseen), unseen
    expected = {"unknown-key", "bad-duration", "share-above-all", "missing-match", "zero-ttl", "config-bad-size"}
    assert {f"{name}.yaml" for name in expected} <= set(seen)
