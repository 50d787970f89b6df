"""The traits of a dialect: its endpoints, and the parts of its calls and answers that others read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ModelObjects:
    """How a dialect writes models. OpenAI's objects are the neutral form; fields of other dialects stay beside its own.

    `write` converts one model, and `page` the list of all. `read` converts one of a backend's list, which stands under
    `key`.
    """

    write: Callable[[Mapping[str, Any]], dict[str, Any]]
    page: Callable[[list[dict[str, Any]]], dict[str, Any]]
    query: str = ""  # that asks a backend for all its models
    key: str = "data"
    read: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None  # None: lists are OpenAI's or Anthropic's


@dataclass(frozen=True, slots=True)
class Budgets:
    """How a dialect bounds thinking by a number of tokens.

    `set` puts a budget into a body, below the limit on the answer; without one, the dialect's own limit holds. `cap`
    lowers the client's budget below a limit.
    """

    set: Callable[[dict[str, Any], int, int | None], None]
    cap: Callable[[dict[str, Any], int], None]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How the endpoints of a dialect are called, besides the body of a call."""

    key_header: str | None = None  # has the bare API key; None if `Authorization` has it as a bearer token
    key_parameter: str | None = None  # of the query: it may have the key in place of `key_header`
    own_headers: frozenset[str] = frozenset()  # headers that mean something in this dialect only, in lower case
    required_headers: tuple[tuple[str, str], ...] = ()  # with the values for clients that send none
    is_versioned: bool = False  # the base URL that clients are given ends in the version of the API
    embeds: bool = True  # there are endpoints with models of embeddings
    budgets: Budgets | None = None  # for thinking
    base_url: str | None = None  # the `BaseUrl` of its backends, as module:attribute; None for the usual one
    paths_name_models: bool = False  # paths that no dialect claims name models, too: see `Dialect.renamed_path`
    models: ModelObjects | None = None  # None without a list of models at `/v1/models`


Schema = Mapping[str, Any] | bool
"""A JSON Schema."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool in an answer. `arguments` are parsed; a text that is not JSON stays a text."""

    name: str
    arguments: Any
    by_server: bool = False  # the backend has run the tool, so the request has no schema for it

    @property
    def is_readable(self) -> bool:
        """Whether the backend sent a name and arguments of the types that its protocol demands."""
        return isinstance(self.name, str) and self.name != "" and (self.by_server or self.arguments is not None)


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The parts of an answer that a schema can describe. A choice has a text unless it calls tools."""

    texts: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class DemandedForm:
    """The schemas that a request names. `text` is None if the text of its answer is free."""

    text: Schema | None
    tools: Mapping[str, Schema]

    def __bool__(self) -> bool:
        return self.text is not None or bool(self.tools)


@dataclass(frozen=True, slots=True)
class Tunable:
    """The parameters of a call that a tier may set. `set_effort` sets the effort of reasoning in a body to what its
    second argument returns for the client's. That is None if the call has no effort."""

    limit_field: str  # with the most tokens of the answer
    set_effort: Callable[[dict[str, Any], Callable[[Any], Any]], None] | None = None


class OpenParts(Protocol):
    """`OpenParts` knows which parts of a stream have begun and have not ended. It is true while there are any."""

    def feed(self, data: bytes) -> None:
        """Read the data of the next event."""

    def __bool__(self) -> bool: ...
