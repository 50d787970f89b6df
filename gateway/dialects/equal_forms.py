"""Bring requests that mean the same to one form, for the cache keys alone: the backend gets each request as it came.

A field counts as absent only where its protocol's reference says that this value is the default, whatever the model. So
`n: 1` does, and `temperature: 1` does not: servers of OpenAI's protocol take their own default from the model. The
sources, all read in November 2026:

- OpenAI: https://platform.openai.com/docs/api-reference/chat/create, .../completions/create, .../embeddings/create
- Responses: https://platform.openai.com/docs/api-reference/responses/create
- Anthropic: https://platform.claude.com/docs/en/api/messages/create
- Triton: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
- TF Serving: https://www.tensorflow.org/tfx/serving/api_rest

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_EXACT = 2**53  # beyond it, a double stands for several integers


@dataclass(frozen=True, slots=True)
class Field:
    """An optional field. Null counts as absent. `defaults`: further values that do. `form`: brings equal values to one
    form, before they are compared."""

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

_SAMPLING: Table = {
    "frequency_penalty": NUMBER,
    "logit_bias": MAP,
    "max_tokens": NUMBER,
    "n": ONE,  # "defaults to 1"
    "presence_penalty": NUMBER,
    "seed": NUMBER,
    "stop": STOP,
    "temperature": NUMBER,
    "top_p": NUMBER,
}
CHAT: Table = {
    **_SAMPLING,
    "audio": NULLABLE,
    "function_call": NULLABLE,
    "functions": LIST,
    "logprobs": OFF,  # "defaults to false"
    "max_completion_tokens": NUMBER,
    "modalities": Field((["text"],)),  # "the default: ["text"]"
    "parallel_tool_calls": NULLABLE,
    "prediction": NULLABLE,
    "reasoning_effort": NULLABLE,
    "response_format": Field(({"type": "text"},)),  # "the default response format"
    "service_tier": AUTO,  # "when not set, the default behavior is 'auto'"
    "store": NULLABLE,  # false: `gateway.dialects.openai` leaves it out
    "tool_choice": NULLABLE,
    "tools": LIST,
    "top_logprobs": NUMBER,
    "verbosity": NULLABLE,
    "web_search_options": NULLABLE,
}
COMPLETIONS: Table = {
    **_SAMPLING,
    "best_of": ONE,  # "defaults to 1"
    "echo": OFF,  # "defaults to false"
    "logprobs": NUMBER,
    "suffix": NULLABLE,
}
EMBEDDINGS: Table = {"dimensions": NUMBER, "encoding_format": Field(("float",))}  # "defaults to float"
RESPONSES: Table = {
    "background": OFF,  # "defaults to false"
    "conversation": NULLABLE,
    "include": LIST,
    "instructions": NULLABLE,
    "max_output_tokens": NUMBER,
    "max_tool_calls": NUMBER,
    "parallel_tool_calls": NULLABLE,
    "previous_response_id": NULLABLE,
    "prompt": NULLABLE,
    "reasoning": NULLABLE,
    "service_tier": AUTO,
    "store": Field((True,)),  # "defaults to true"
    "temperature": NUMBER,
    "text": Field(({}, {"format": {"type": "text"}})),  # "the default format"
    "tool_choice": NULLABLE,
    "tools": LIST,
    "top_logprobs": NUMBER,
    "top_p": NUMBER,
    "truncation": Field(("disabled",)),  # "disabled (default)"
}
MESSAGES: Table = {
    "container": NULLABLE,
    "context_management": NULLABLE,
    "max_tokens": NUMBER,
    "mcp_servers": LIST,
    "service_tier": AUTO,  # "defaults to auto"
    "stop_sequences": LIST,
    "system": LIST,
    "temperature": NUMBER,
    "thinking": NULLABLE,
    "tool_choice": NULLABLE,
    "tools": LIST,
    "top_k": NUMBER,
    "top_p": NUMBER,
}
PREDICT: Table = {"signature_name": Field(("serving_default",))}  # "if unspecified, the default serving signature"

# The parts of a chat. An assistant's message that a client sends back has null for all that it lacks.
_TURN: Table = {
    "audio": NULLABLE,
    "content": NULLABLE,
    "function_call": NULLABLE,
    "name": NULLABLE,
    "refusal": NULLABLE,
    "tool_calls": LIST,
}
_FUNCTION: Table = {"description": NULLABLE, "parameters": NULLABLE, "strict": OFF}  # "strict: defaults to false"
_TOOL_RESULT: Table = {"content": NULLABLE, "is_error": OFF}
_NO_TURN = frozenset({"role", "content"})


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


def generate_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a request of Triton's generate extension: the model's configuration gives each number a type,
    and "parameters" are optional."""
    plain = {name: number(value) for name, value in body.items()}
    parameters = plain.get("parameters")
    if isinstance(parameters, dict):
        plain["parameters"] = {name: number(value) for name, value in parameters.items()}
        if not parameters:
            del plain["parameters"]
    return plain


def chat_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a chat of OpenAI's protocol, whose messages were checked."""
    plain = with_defaults_left_out(body, CHAT)
    plain["messages"] = messages = []
    for message in body["messages"]:
        is_text = message.keys() == _NO_TURN and type(message["content"]) is str  # as most are
        messages.append(message if is_text else _turn(message))
    if "tools" in plain:
        plain["tools"] = _each(plain["tools"], _chat_tool)
    if "tool_choice" in plain:
        _leave_out_choice(plain, "auto", "none", ("functions", "web_search_options"))
    return plain


def messages_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a request of Anthropic's protocol, whose messages were checked. A text is the same as one
    block of text, says the reference."""
    plain = with_defaults_left_out(body, MESSAGES)
    plain["messages"] = [
        message if isinstance(message["content"], str) else _blocks_form(message) for message in body["messages"]
    ]
    if "system" in plain:
        plain["system"] = _as_text(plain["system"], "text")
    if "tool_choice" in plain:
        _leave_out_choice(plain, {"type": "auto"}, {"type": "none"}, ("mcp_servers", "container"))
    return plain


def responses_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a request of the Responses API, whose items were checked. A text as input is the same as one
    of the role `user`, says the reference."""
    plain = with_defaults_left_out(body, RESPONSES)
    given = plain.get("input")
    if isinstance(given, list):
        items = [_item(item) for item in given]
        plain["input"] = items[0]["content"] if len(items) == 1 and _is_user_text(items[0]) else items
    if "tool_choice" in plain:
        _leave_out_choice(plain, "auto", "none", ("prompt", "conversation", "previous_response_id"))
    return plain


def _leave_out_choice(plain: dict[str, Any], with_tools: Any, without: Any, others: Sequence[str]) -> None:
    """Leave out a `tool_choice` that is the default: one value where there are tools, another where there are none.
    `others`: fields that may bring tools, too."""
    choice = plain["tool_choice"]
    if choice == with_tools if "tools" in plain else choice == without and not any(name in plain for name in others):
        del plain["tool_choice"]


def _each(values: Any, form: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    if not isinstance(values, list):
        return values
    return [form(value) if isinstance(value, dict) else value for value in values]


def _turn(message: Mapping[str, Any]) -> Mapping[str, Any]:
    plain = with_defaults_left_out(message, _TURN)
    if "content" in plain:
        plain["content"] = _as_text(plain["content"], "text")
    return plain


def _as_text(content: Any, kind: str) -> Any:
    """Return the text of a content that is one part with a text and nothing else."""
    if not isinstance(content, list) or len(content) != 1:
        return content
    part = content[0]
    is_text = isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == kind
    return part["text"] if is_text else content


def _chat_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return {**tool, "function": with_defaults_left_out(function, _FUNCTION)} if isinstance(function, dict) else tool


def _is_user_text(item: Mapping[str, Any]) -> bool:
    return item.keys() == _NO_TURN and item["role"] == "user" and isinstance(item["content"], str)


def _item(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item of an input. Its type is `message` unless it says otherwise."""
    if item.get("type", "message") != "message":
        return item
    plain = {name: value for name, value in item.items() if name != "type"}
    content = plain.get("content")
    if isinstance(content, list) and item.get("role") != "assistant":
        plain["content"] = _as_text(content, "input_text")
    return plain


def _blocks_form(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return message
    blocks: Sequence[Any] = [_result(block) if block["type"] == "tool_result" else block for block in content]
    return {**message, "content": _as_text(blocks, "text")}


def _result(block: Mapping[str, Any]) -> Mapping[str, Any]:
    plain = with_defaults_left_out(block, _TOOL_RESULT)
    if "content" in plain:
        plain["content"] = _as_text(plain["content"], "text")
    return plain
