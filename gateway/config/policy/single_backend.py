"""The configuration of `nearhit serve --upstream URL`: one backend, both caches on, no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config import Config
from gateway.config.errors import ConfigError, KeyPath
from gateway.config.load import build_config
from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import Policy

POLICY = b"""\
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%, audit: 2%}}
    route: {backend: main}
"""


def upstream_config(
    url: str, environ: Mapping[str, str] | None = None, warn: Callable[[ConfigError], object] | None = None
) -> tuple[Config, Policy]:
    """Return configuration and policy for one endpoint of OpenAI or Anthropic.

    Settings of the environment apply as they do to a file. `warn` gets each warning. Raise `ConfigInvalid`.
    """

    def fault_at(_: KeyPath, message: str) -> ConfigError:
        return ConfigError("command line", 0, ("--upstream",), message)

    adapter = "anthropic" if urlsplit(url).hostname == "api.anthropic.com" else "openai"
    document = {"version": 1, "backends": {"main": {"adapter": adapter, "url": url}}}
    config = build_config(document, (), fault_at, Path(), environ or {}).valid(warn)
    return config, policy_from_text(POLICY, "upstream", config)
