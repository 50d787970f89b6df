"""Configurations and policies that tests start from."""

from __future__ import annotations

from gateway.config import Config
from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import Policy

BACKENDS = ("light", "large", "main")


def config() -> Config:
    backend = {"adapter": "openai", "url": "https://host/v1"}
    return Config.model_validate({"version": 1, "backends": dict.fromkeys(BACKENDS, backend)})


def rule(name: str, match: str = "{}", more: str = "") -> str:
    return f"  - name: {name}\n    match: {match}\n    route: {{backend: main}}\n{more}"


def text(*rules: str) -> str:
    return "version: 1\nroutes:\n" + "".join(rules)


def policy(*rules: str) -> Policy:
    return policy_from_text(text(*rules, rule("default")), "test.yaml", config())
