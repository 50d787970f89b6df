"""The base of all sections, and the translation of pydantic's errors into sentences for operators.

`Section` is the base of every mapping of a configuration file. It reports unknown keys, missing keys and contradictions
between keys together with the faults of their values, so that one check finds every fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from gateway.config.errors import KeyPath, closest_match, format_value, unknown_name

_SENTENCE_ERROR = "sentence"  # the type of an error whose message is already the sentence


class Problem(NamedTuple):
    """A contradiction inside a mapping: the key to point at, or None for the mapping itself, and the sentence.

    A tuple is the path of a key in a section within the mapping.
    """

    key: str | tuple[str, ...] | None
    error_sentence: str

    @property
    def path(self) -> tuple[str, ...]:
        """The path of the key within the mapping."""
        return () if self.key is None else (self.key,) if isinstance(self.key, str) else self.key


class Extension(NamedTuple):
    """A key that a section has besides its fields. Its code is elsewhere."""

    key: str
    after: str  # the key that it follows in lists of keys, or "" if it comes last
    summary: str  # the description of the key
    annotation: Any  # the type of its value, with its validators and forms
    default: Any = None

    @property
    def form(self) -> TypeAdapter[Any]:
        """The adapter that reads the value."""
        return TypeAdapter(self.annotation)

    @property
    def field(self) -> FieldInfo:
        """The key as a field of its section."""
        return FieldInfo.from_annotated_attribute(self.annotation, self.default)


class Section(BaseModel):
    """A mapping of a configuration file: immutable, without unknown keys, without conversions between types."""

    described_in: ClassVar[type[Section] | None] = None
    """A section in which keys of the same name mean the same. It describes the keys that have no description here."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:  # noqa: ARG003 - subclasses read it
        """Yield the contradictions between keys. `settings` are as written: any key may have any value."""
        return iter(())

    @classmethod
    def further_keys(cls) -> Iterator[Extension]:
        """Yield the keys that the section has besides its fields."""
        return iter(())

    @classmethod
    def further_key(cls, key: str) -> Extension | None:  # noqa: ARG003 - subclasses read it
        """Return one of the `further_keys`, or None if there is none of this key."""
        return None

    def extend(self, values: Mapping[str, Any]) -> None:
        """Take the values of the further keys that the file has."""

    @classmethod
    def listed_keys(cls) -> list[str]:
        """Return all keys in the order in which they are listed."""
        keys = list(cls.model_fields)
        for each in cls.further_keys():
            keys.insert(keys.index(each.after) + 1 if each.after in keys else len(keys), each.key)
        return keys

    @model_validator(mode="wrap")
    @classmethod
    def _report_all(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, dict):
            return handler(value)
        fields = {key: item for key, item in value.items() if key in cls.model_fields}
        others = {key: cls.further_key(str(key)) for key in value if key not in fields}
        strangers = [key for key, extension in others.items() if extension is None]
        names = cls.listed_keys() if strangers else ()
        # The key that a misspelt one was meant to be counts as given, so that one slip is one fault.
        misspelt = {guess: value[key] for key in strangers if (guess := closest_match(key, names))}
        errors = [_error((key,), unknown_name("key", key, names), value[key]) for key in strangers]
        extensions = {key: extension for key, extension in others.items() if extension is not None}
        content = {**fields, **{key: value[key] for key in extensions}}
        errors += [
            _error(problem.path, problem.error_sentence, value) for problem in cls.problems({**misspelt, **content})
        ]
        values: dict[str, Any] = {}
        for key, extension in extensions.items():
            try:
                values[key] = extension.form.validate_python(value[key])
            except ValidationError as invalid:
                errors += (
                    _error((key, *each["loc"]), error_sentence(each), each["input"]) for each in invalid.errors()
                )
        try:
            section = handler(fields)
        except ValidationError as invalid:
            errors += cls._error_details(invalid, misspelt)
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        section.extend(values)
        return section

    @classmethod
    def _error_details(cls, invalid: ValidationError, misspelt: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
        for error in invalid.errors():
            key = error["loc"][0] if len(error["loc"]) == 1 else None
            if error["type"] != "missing":
                yield _error(error["loc"], error_sentence(error), error["input"])
            elif key not in misspelt:
                example = cls.model_fields[str(key)].examples or ["..."]
                yield _error((), f"{key!r} is required, e.g. {key}: {example[0]}", error["input"])


def error_messages(invalid: ValidationError) -> list[tuple[KeyPath, str]]:
    """Return each error as its path and its sentence."""
    # pydantic marks a fault of a key itself with an extra last part; the path ends at the key.
    return [
        (tuple(part for part in error["loc"] if part != "[key]"), error_sentence(error)) for error in invalid.errors()
    ]


def one_of(*allowed: str, refused: Mapping[str, str] | None = None) -> BeforeValidator:
    """Return a validator for a choice between words. `refused` has the reasons why other words are no choice.

    YAML 1.1 reads a bare `off` as false, so false stands for `off` if that is one of the words.
    """

    def check(value: object) -> object:
        if value is False and "off" in allowed:
            return "off"
        if isinstance(value, str) and value in allowed:
            return value
        expected = f"expected {'one of: ' if len(allowed) > 1 else ''}{', '.join(allowed)}"
        if isinstance(value, str) and refused is not None and value in refused:
            raise ValueError(f"{value!r} is not offered, because {refused[value]}; {expected}")
        if isinstance(value, str) and (guess := closest_match(value, allowed)):
            raise ValueError(f"unknown value {format_value(value)}, did you mean {guess!r}? {expected}")
        raise ValueError(f"{expected}, got {format_value(value)}")

    return BeforeValidator(check)


def _not_empty(value: object) -> object:
    if value in ([], {}):
        raise ValueError(f"expected at least one entry, got {format_value(value)}")
    return value


NOT_EMPTY = BeforeValidator(_not_empty)
"""A list or mapping with an entry, checked as written, because pydantic's own bound also counts faulty entries."""


def error_sentence(error: ErrorDetails) -> str:
    """Return the sentence of an error: the problem, then the expected form."""
    context = error.get("ctx", {})
    if error["type"] == _SENTENCE_ERROR:
        return error["msg"]
    if error["type"] == "value_error":
        return str(context["error"])
    expectation = _EXPECTATIONS.get(error["type"])
    if expectation is None:  # no field leads here today; pydantic's words are better than none
        return error["msg"]
    hint = "; put it in quotes" if error["type"] == "string_type" and _scalar(error["input"]) else ""
    return f"expected {expectation(context)}, got {format_value(error['input'])}{hint}"


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _scalar(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _error(loc: tuple[int | str, ...], text: str, value: object) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(_SENTENCE_ERROR, "{text}", {"text": text}), loc=loc, input=value)


_EXPECTATIONS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_type": lambda _: "a whole number",
    "int_from_float": lambda _: "a whole number",
    "float_type": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "bool_type": lambda _: "true or false",
    "string_type": lambda _: "text",
    "string_too_short": lambda _: "text",
    "string_unicode": lambda _: "text in valid Unicode",
    "string_too_long": lambda c: f"at most {c['max_length']} characters",
    "dict_type": lambda _: "a mapping",
    "mapping_type": lambda _: "a mapping",
    "model_type": lambda _: "a mapping",
    "list_type": lambda _: "a list",
    "tuple_type": lambda _: "a list",
    "greater_than_equal": lambda c: f"at least {_number(c['ge'])}",
    "greater_than": lambda c: f"more than {_number(c['gt'])}",
    "less_than_equal": lambda c: f"at most {_number(c['le'])}",
    "less_than": lambda c: f"less than {_number(c['lt'])}",
}
