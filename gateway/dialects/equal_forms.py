"""Bring requests that mean the same to one form, for the cache keys alone: the backend gets each request as it came.

A field counts as absent only where its protocol's reference says that this value is the default, whatever the model. So
`n: 1` does, and `temperature: 1` does not: servers of OpenAI's protocol take their own default from the model. The
sources, all read in November 2026:

- OpenAI: https://platform.openai.com/docs/api-reference/chat/create, .../completions/create, .../embeddings/create
- Responses: https://platform.openai.com/docs/api-reference/responses/create
- Anthropic: https://platform.claude.com/docs/en/api/messages/create
- Triton: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
- TF Serving: https://www.tensorflow.org/tfx/serving/api_rest

Each dialect has its own fields and forms; these are the parts that they share. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_EXACT = 2**53  # beyond it, a double stands for several integers


@dataclass(frozen=True, slots=True)
class Field:
    """An optional field. Null counts as absent. `defaults` are further values that do. `form` brings equal values to
    one form, before they are compared."""

    defaults: tuple[Any, ...] = ()
    form: Callable[[Any], Any] | None = None

    def is_default(self, value: Any) -> bool:
        # `True == 1` in Python, but not in JSON.
        return any(type(value) is type(default) and value == default for default in self.defaults)


Table = Mapping[str, Field]


def number(value: Any) -> Any:
    """Return a whole number as an integer: 0.0 is 0."""
    return int(value) if type(value) is float and abs(value) < MAX_EXACT and value.is_integer() else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


NULLABLE, NUMBER, LIST, MAP = Field(), Field(form=number), Field(([],)), Field(({},))
ONE, OFF, AUTO = Field((1,), number), Field((False,)), Field(("auto",))
STOP = Field(([],), _listed)  # "a string or an array of up to four strings"

NO_TURN = frozenset({"role", "content"})  # the keys of a turn that is only text


def with_defaults_left_out(body: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Return a body without the fields that count as absent, and the others in their form."""
    plain = dict(body)
    for name in table.keys() & body.keys():
        field, value = table[name], body[name]
        if field.form is not None and type(value) is not int:
            value = plain[name] = field.form(value)
        if value is None or (field.defaults and field.is_default(value)):
            del plain[name]
    return plain


def leave_out_choice(plain: dict[str, Any], with_tools: Any, without: Any, others: Sequence[str]) -> None:
    """Leave out a `tool_choice` that is the default: one value where there are tools, another where there are none.
    `others` are fields that may bring tools, too."""
    choice = plain["tool_choice"]
    if choice == with_tools if "tools" in plain else choice == without and not any(name in plain for name in others):
        del plain["tool_choice"]


def each_form(values: Any, form: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """Return a list with the form of each object in it."""
    if not isinstance(values, list):
        return values
    return [form(value) if isinstance(value, dict) else value for value in values]


def as_text(content: Any, kind: str) -> Any:
    """Return the text of a content that is one part with a text and nothing else."""
    if not isinstance(content, list) or len(content) != 1:
        return content
    part = content[0]
    is_text = isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == kind
    return part["text"] if is_text else content
