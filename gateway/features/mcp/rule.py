"""The section `cache.mcp` of a route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.config.fields import Text, optional_section
from gateway.config.schema_types import ON_OR_OFF, SWITCH, or_schemas
from gateway.config.units import PositiveDuration, Switch
from gateway.config.validation import Problem, Section, one_of

Audience = Annotated[Literal["private", "public"], one_of("private", "public")]


class McpResultRule(Section):
    """The results of one request of the Model Context Protocol whose server gives no hints."""

    ttl: PositiveDuration = Field(examples=["5m"])
    """How long a result stays fresh if the server does not say."""
    scope: Audience = "private"
    """The clients that a result serves if the server does not say: those of one session (`private`), or all that
    `share` lets share (`public`)."""


class McpToolRule(Section):
    """The results of one tool of an MCP server."""

    ttl: PositiveDuration = Field(examples=["5m"])
    """How long a result stays fresh."""
    read_only: Switch = False
    """`on`: the tool changes nothing. `off`: its results are stored only if the server's last list of tools says
    `readOnlyHint`."""
    scope: Audience = "private"
    """The clients that a result serves: those of one session (`private`), or all that `share` lets share (`public`)."""


McpMethod = Annotated[
    Literal[
        "prompts/get", "prompts/list", "resources/list", "resources/read", "resources/templates/list", "tools/list"
    ],
    one_of("prompts/get", "prompts/list", "resources/list", "resources/read", "resources/templates/list", "tools/list"),
]


class McpRule(Section):
    """The caching of results of MCP servers. The hints `ttlMs` and `cacheScope` of a server decide first."""

    results: Mapping[McpMethod, McpResultRule] = Field(default={})
    """Methods, each with the lifetime that the server does not give, such as `{tools/list: {ttl: 5m}}`."""
    tools: Mapping[Text, McpToolRule] = Field(default={})
    """The tools whose results are stored, by exact name, such as `{search: {ttl: 5m}}`. Other calls always reach the
    server."""


McpForm = Annotated[
    McpRule | None,
    BeforeValidator(optional_section(McpRule, "{tools: {search: {ttl: 5m}}}")),
    or_schemas(SWITCH),
    ON_OR_OFF,
]
SUMMARY = (
    "`on`, or `{tools: {search: {ttl: 5m}}}`: results of MCP servers are stored as their hints say, for `exact.ttl` at "
    "most. `off`: all messages reach the server."
)


def mcp_problems(route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the faults of `cache.mcp` next to the other keys of a route, which is as written."""
    cache = route.get("cache")
    caches = cache if isinstance(cache, dict) else {}
    admit = caches.get("admit")
    if not isinstance(caches.get("exact"), dict):
        yield Problem(("cache", "mcp"), "results are exact entries, whose ttl bounds theirs, expected cache.exact")
    if isinstance(admit, dict) and admit.get("trust") is not None:
        yield Problem(
            ("cache", "mcp"),
            "cannot stand next to admit.trust, because the scope of a result says whom it serves, "
            "expected only one of the two",
        )
    if isinstance(route.get("privacy"), dict):
        yield Problem("privacy", "reads no MCP messages, expected only one of privacy and cache.mcp")
