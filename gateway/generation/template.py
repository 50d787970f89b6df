"""A model's own chat template, as Hugging Face keeps it (Jinja): messages -> the text that the model was trained to go
on with. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import Unfit


class TemplateFaulty(Exception):
    """A template that cannot be read; the message says why."""


class ChatTemplate:
    """`special`: the names that templates know special tokens by, `bos_token` and the like. The environment is what
    transformers renders with (`apply_chat_template`), sandboxed as there: a template sees the messages and nothing of
    the process. Raises `TemplateFaulty`."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _refuse
        self._special = dict(special)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise TemplateFaulty(str(error)) from None

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Raises `Unfit` where the template refuses the messages, as some do a `system` message."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            why = str(error) if isinstance(error, _Refused) else type(error).__name__  # others may quote the prompt
            raise Unfit(f"the model's chat template refuses the messages: {why[:200]}") from None


class _Refused(TemplateError):
    """What a template says of messages that it was not made for."""


def _refuse(sentence: str) -> NoReturn:
    raise _Refused(str(sentence))


def _json(value: Any, indent: int | None = None) -> str:
    """Without the escapes for web pages that Jinja's own has."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
