"""The common parts of calls that pass through, and whose answers are cached by exact match.

A request that the gateway cannot read for certain is no such call: `parse` raises `BadRequest`, it passes through, and
its backend judges it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls import Call, Decisive, Inspection, Outgoing
from gateway.config.schema import MAX_BODY_KEYS
from gateway.dialects.equal_forms import Table, with_defaults_left_out
from gateway.dialects.json_body import check_keys, check_model, dump_json, load_json, read_object
from gateway.dialects.renamed_models import renamed_body
from gateway.dialects.unstreamed import Unstreamed
from gateway.dialects.usage import AnswerUsage, usage_in
from gateway.errors import BadRequest
from gateway.features.exact_calls.forms import FORM, Form
from gateway.features.exact_calls.links import has_link
from gateway.outcomes import Admission, Bypass
from gateway.prices import Tokens, Unit

NO_TOKENS = Tokens()
JSON_TYPE = "application/json"
JSON = ("json", "*/*", "application/*")  # parts of an Accept header that admit JSON


class ExactCalls(Unstreamed):
    """`ExactCalls` is a dialect whose calls go to the backend as they came. Any backend accepts them, and it judges
    them."""

    accepted_by = None
    reads_streams = False
    operation = ""
    unit: Unit | None = None  # by which providers bill the calls, besides tokens
    forms: Sequence[str] = JSON  # of answers that may be cached: parts of an Accept header, which is in no key

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        raise NotImplementedError

    def check_accept(self, headers: Mapping[str, str]) -> None:
        """Raise `BadRequest` if a client wants an answer that is never cached, such as a picture as it is."""
        accepted = headers.get("accept", "").lower()
        if accepted and not any(form in accepted for form in self.forms):
            raise BadRequest("another kind of answer than JSON is wanted")

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        assert call.body_bytes is not None
        form, body = call.body.get(FORM), call.body_bytes
        kind = form.content_type if isinstance(form, Form) else JSON_TYPE
        if model is not None and (renamed := renamed_body(body, kind, {call.model: model})) is not None:
            body, kind = renamed
        return Outgoing(path, body, (("Content-Type", kind),) if isinstance(form, Form) else ())

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        """Return an error in OpenAI's form, which requests that no dialect claims get, too."""
        return dump_json({"error": {"message": message, "type": kind, "param": param, "code": None}})

    def call(
        self,
        fields: Mapping[str, Any],
        decisive: Callable[[], bytes],
        body: bytes,
        *,
        model: str,
        texts: Callable[[Mapping[str, Any]], str],
        user: str | None = None,
    ) -> Call:
        """Return the call of a body that was checked. `decisive` returns the canonical form of what decides the
        answer, and `texts` returns its text."""

        def decide() -> Decisive:
            canonical = decisive()
            return Decisive(canonical, canonical, None, Bypass.NO_TEXT)

        return Call(
            dialect=self,
            operation=self.operation,
            body=fields,
            model=model,
            stream=False,
            decisive_source=decide,
            prompt_source=texts,
            max_tokens=None,
            user=user,
            passes=True,
            body_bytes=body,
        )

    def call_of_form(self, path: str, form: Form, defaults: Mapping[str, str]) -> Call:
        """Return the call of a form. Raise `BadRequest` if it names two models or prompts, or content by a
        link."""
        if has_link(form.fields, everywhere=True):
            raise BadRequest("the content is behind a link, and may change")
        prompt = form.value("prompt") or ""
        return self.call(
            {FORM: form},
            lambda: form.canonical(path, defaults),
            form.written,
            model=form.value("model") or "",
            texts=lambda _: prompt,
            user=form.value("user"),
        )

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        if streamed or len(payload) != 1 or not payload[0]:
            return Inspection(Admission.INCOMPLETE, 0, 0)
        try:
            answer = load_json(payload[0])
        except orjson.JSONDecodeError:
            return Inspection(Admission.MALFORMED, 0, 0)
        if isinstance(answer, Mapping) and answer.get("error"):
            return Inspection(Admission.ERROR_STATUS, 0, 0)
        return self.inspected(call, self.admission_of(call, answer), usage_in(answer))

    def inspected(self, call: Call, admission: Admission, usage: AnswerUsage) -> Inspection:
        tokens = usage.tokens or NO_TOKENS
        amount = self.billed_units(call, usage)
        billed = None if self.unit is None or amount is None else (self.unit, amount)
        return Inspection(admission, *tokens, billed=billed)

    def admission_of(self, call: Call, answer: Any) -> Admission:
        """Return whether a JSON answer may be stored."""
        raise NotImplementedError

    def billed_units(self, call: Call, usage: AnswerUsage) -> float | None:
        """Return the amount of `unit` that an answer costs, or None if it does not tell."""
        return None


class JsonCalls(ExactCalls):
    """`JsonCalls` are those with a JSON object as their body. `table` has the fields with a default, and `bookkeeping`
    those that decide nothing."""

    path: re.Pattern[str]
    table: Table
    bookkeeping: frozenset[str] = frozenset()
    links_everywhere = False  # see `has_link`

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        """Return the call. Raise `BadRequest`, and `PayloadTooLarge` beyond `MAX_BODY_KEYS`."""
        self.check_accept(headers)
        check_keys(body, MAX_BODY_KEYS)
        fields, written = read_object(body)
        check_model(fields)
        if fields.get("stream"):
            raise BadRequest("a stream passes through", param="stream")
        self.check(fields)
        if has_link(fields, everywhere=self.links_everywhere):
            raise BadRequest("a picture is behind a link, and may change")
        user = fields.get("user")
        return self.call(
            fields,
            lambda: self.canonical(path, fields),
            written,
            model=fields.get("model") or "",
            texts=self.prompt,
            user=user if isinstance(user, str) else None,
        )

    def canonical(self, path: str, fields: Mapping[str, Any]) -> bytes:
        """Return what decides the answer. The path does: each version of an API has its own form of answers."""
        plain = with_defaults_left_out(fields, self.table)
        for name in ("stream", "user", *self.bookkeeping):
            plain.pop(name, None)
        return dump_json([path, plain], canonical=True)

    def check(self, fields: Mapping[str, Any]) -> None:
        """Raise `BadRequest` if the fields are not those of such a call."""
        raise NotImplementedError

    def prompt(self, fields: Mapping[str, Any]) -> str:
        """Return the text of a call, whose length estimates its tokens."""
        raise NotImplementedError
