"""Check whether an answer fits the JSON Schema that its request names.

A client writes the schema, and a model writes the answer, so that neither may cost much. Sizes are bounded, and so are
the steps of a check and the attempts of each pattern. A reference leads only into the schema itself, and nothing is
ever fetched. A schema that is not valid, or too costly, is no error: the check is left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from gateway.bounded_cache import BoundedCache
from gateway.cache.schema_checks import Validity
from gateway.calls import Call
from gateway.dialect_traits import DemandedForm, Schema
from gateway.features.answer_schemas.pattern_cost import is_cheap

MAX_SCHEMA_BYTES = 32 * 1024
MAX_ANSWER_BYTES = 128 * 1024  # of its events together, or of its body
MAX_STEPS = 20_000  # keywords of a schema that meet a value: about 0.2 s
CHARACTERS_PER_STEP = 64  # of the message of a failed keyword, which quotes the value
MAX_COMPILED = 128


class _StepsExhausted(Exception):
    """The steps of a check are used up."""


class _Steps:
    """The steps that are left of one check."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _StepsExhausted


Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


class SchemaValidator:
    """`SchemaValidator` checks answers, one at a time, and keeps the latest schemas in compiled form."""

    def __init__(self) -> None:
        self._steps = _Steps()
        self._compiled: BoundedCache[bytes, Any] = BoundedCache(MAX_COMPILED)  # digest -> validator, or None
        self._drafts: dict[type, Any] = {}

    def check(self, form: DemandedForm, call: Call, payload: Sequence[bytes], streamed: bool) -> Validity:
        """Return how an answer fits. `payload` as in `Entry`. An answer that cannot be read does not fit."""
        if sum(map(len, payload)) > MAX_ANSWER_BYTES:
            return Validity.TOO_COSTLY
        answer = call.dialect.answer_parts(call, payload, streamed)
        if answer is None:
            return Validity.INVALID
        fits = []
        if form.text is not None:
            fits += [self.fit_text(form.text, text) for text in answer.texts]
        for made in answer.tool_calls:
            if not made.by_server and made.name in form.tools:
                fits.append(self.fit(form.tools[made.name], made.arguments))
        order = (Validity.INVALID, Validity.BAD_SCHEMA, Validity.TOO_COSTLY)
        return next((fit for fit in order if fit in fits), Validity.VALID)

    def fit_text(self, schema: Schema, text: str) -> Validity:
        """Return how a text fits, which must be JSON and nothing else."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return Validity.BAD_SCHEMA if self._validator(schema) is None else Validity.INVALID
        return self.fit(schema, value)

    def fit(self, schema: Schema, value: Any) -> Validity:
        validator = self._validator(schema)
        if validator is None:
            return Validity.BAD_SCHEMA
        self._steps.left = MAX_STEPS
        try:
            return Validity.VALID if next(validator.iter_errors(value), None) is None else Validity.INVALID
        except _StepsExhausted:
            return Validity.TOO_COSTLY
        except (Unresolvable, UnknownType):
            return Validity.BAD_SCHEMA
        except (RecursionError, ArithmeticError, TypeError, ValueError, AttributeError, KeyError):
            return Validity.BAD_SCHEMA  # what the schema of schemas lets pass and the library cannot handle

    def _validator(self, schema: Schema) -> Any:
        try:
            written = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            return None
        if len(written) > MAX_SCHEMA_BYTES:
            return None
        digest = sha256(written).digest()
        if digest not in self._compiled:
            self._compiled.put(digest, self._compile(schema))
        return self._compiled.get(digest)

    def _compile(self, schema: Schema) -> Any:
        """Return the validator of a schema, or None if the schema cannot be used."""
        draft = validator_for(schema, default=Draft202012Validator)
        alone = schema
        if isinstance(schema, Mapping):  # a mark of the draft would bring back its keywords without their bounds
            alone = {key: value for key, value in schema.items() if key != "$schema"}
        if not _is_self_contained(alone):
            return None
        try:
            draft.check_schema(schema)
        except (SchemaError, RecursionError, ArithmeticError, TypeError, ValueError, AttributeError):
            return None
        return self._bounded(draft)(alone, registry=Registry())

    def _bounded(self, draft: Any) -> Any:
        """Return a draft of JSON Schema whose keywords count their steps."""
        validator = self._drafts.get(draft)
        if validator is None:
            keywords = {**draft.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique_items}
            counted = {name: self._counted(keyword) for name, keyword in keywords.items()}
            validator = self._drafts[draft] = extend(draft, counted)
        return validator

    def _counted(self, keyword: Keyword) -> Keyword:
        spend = self._steps.spend

        def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            spend(1)
            for error in keyword(validator, value, instance, schema) or ():
                spend(len(error.message) // CHARACTERS_PER_STEP)
                yield error

        return counted


def _is_self_contained(schema: Any) -> bool:
    """Return whether all references lead into the schema, and no part of it changes the draft.

    `patternProperties` are refused, because their patterns run over all names of an answer at once.
    """
    if isinstance(schema, dict):
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(target := schema.get(key), str) and not target.startswith("#"):
                return False
        if isinstance(schema.get("$schema"), str) or isinstance(schema.get("patternProperties"), dict):
            return False
        return all(map(_is_self_contained, schema.values()))
    return all(map(_is_self_contained, schema)) if isinstance(schema, list) else True


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    """Check a text by a pattern. A pattern that may take long for this text is left out."""
    if isinstance(instance, str) and is_cheap(pattern, len(instance)) and not re.search(pattern, instance):
        yield ValidationError("the text does not match the pattern")


def _unique_items(_: Any, unique: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    """Check that no item comes twice, in linear time. The library compares each pair."""
    if unique is True and isinstance(instance, list):
        written = {orjson.dumps(item, option=orjson.OPT_SORT_KEYS) for item in instance}
        if len(written) < len(instance):
            yield ValidationError("an item comes twice")
