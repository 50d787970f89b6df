"""Meters calls: reserves their cost before them, computes it after them, and refuses what nothing can meter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.bounded_cache import BoundedCache
from gateway.calls import Call
from gateway.context import RequestContext
from gateway.dialects.json_body import BOM
from gateway.dialects.operations import CALL, Operation, operation_of, search_units, seconds_of_upload
from gateway.dialects.prompt_tokens import BYTES_A_TOKEN, input_tokens
from gateway.dialects.usage import AnswerUsage
from gateway.errors import Forbidden, GatewayError
from gateway.features.limits.demands import MICROS
from gateway.features.limits.evaluation import (
    MAX_KINDS,
    CostEstimate,
    Reservation,
    TypicalLength,
)
from gateway.messages import Usage
from gateway.outcomes import Bypass
from gateway.ports import Clock
from gateway.prices import UNPRICED, Price, Tariff, Tokens, Unit

# Seconds for which calls of a kind are refused whose answer has reported no usage, although nothing else meters it.
SILENCE_S = 600.0

MAX_UPLOAD = 25 * 1000 * 1000  # bytes of a recording of unknown length: what OpenAI accepts

MAX_CHOICES = 1_000  # of one call; beyond it the backend refuses the number

DEFAULT_SECONDS = 8.0  # of a video, if the request names none

EXAMPLES: Mapping[Unit | None, str] = {
    Unit.IMAGE: "per_image: 0.04",
    Unit.MINUTE: "per_minute: 0.006",
    Unit.SECOND: "per_second: 0.1",
    Unit.CHARACTERS: "per_million_characters: 15",
    Unit.SEARCH: "per_search: 0.002",
}


@dataclass(frozen=True, slots=True)
class MeteredCall:
    """A call as it is metered."""

    operation: Operation
    method: str
    path: str
    model: str
    call: Call | None
    input_tokens: int  # estimated
    max_output: int | None  # tokens, as the client limits them
    quantity: float  # of the operation's unit, as the request names it: images, characters, seconds
    tenant: str = ""

    @property
    def kind(self) -> str:
        return f"{self.operation.name if self.call is None else self.call.operation}\n{self.model}"


@dataclass(frozen=True, slots=True)
class Spent:
    """The tokens and the dollars that a call has used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    reasoning_tokens: int = 0
    dollars: float = 0.0
    is_priced: bool = field(default=True, compare=False)  # unset if no list and no configuration has its price

    @property
    def tokens(self) -> Tokens:
        return Tokens(
            self.input_tokens, self.output_tokens, self.cached_tokens, self.written_tokens, self.reasoning_tokens
        )

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.written_tokens + other.written_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.dollars + other.dollars,
            self.is_priced and other.is_priced,
        )

    @property
    def cost(self) -> CostEstimate:
        return CostEstimate(self.input_tokens + self.output_tokens, round(self.dollars * MICROS))


def choices_of(call: Call) -> int:
    """Return how many answers a call asks for, by OpenAI's or Gemini's name of that field."""
    choices = call.settings.get("n", call.settings.get("candidateCount"))
    return choices if isinstance(choices, int) else 1


async def metered_call(request: RequestContext) -> MeteredCall:
    """Return the request as it is metered. A JSON body that passes through is read."""
    call = None if request.call is None or request.call.passes else request.call
    operation = operation_of(request.method, request.path, call, upgrades=request.opens_websocket)
    common = operation, request.method, request.path
    if operation.is_free:
        return MeteredCall(*common, request.model, call, 0, None, 0.0)
    if call is not None:
        output = 0 if call.embeds else call.max_tokens
        if output and 1 < (choices := choices_of(call)) < MAX_CHOICES:
            output *= choices
        return MeteredCall(*common, call.model, call, input_tokens(call), output, 0.0)
    body = await _body_of(request)
    fields = _fields_of(body)
    model = request.model or str(fields.get("model") or "")[:200]
    output = None if operation.writes_text or operation.unit is Unit.IMAGE else 0
    quantity = _quantity(operation.unit, fields, request, len(body))
    return MeteredCall(*common, model, None, len(body) // BYTES_A_TOKEN, output, quantity, request.client.tenant)


async def _body_of(request: RequestContext) -> bytes:
    """Return a JSON body. It is empty if there is none, if it is too long to wait for, or if it cannot be decoded."""
    if request.opens_websocket or "json" not in request.headers.get("content-type", "json").lower():
        return b""
    await request.body_source.buffer(whole=True)
    if request.body_source.buffered_body is None:
        return b""
    try:
        return request.body_source.read_nowait() or b""
    except GatewayError:  # the backend judges it
        return b""


def _fields_of(body: bytes) -> Mapping[str, Any]:
    try:
        fields = orjson.loads(body.removeprefix(BOM)) if body else {}
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _quantity(unit: Unit | None, fields: Mapping[str, Any], request: RequestContext, size: int) -> float:
    if unit is Unit.IMAGE:
        return max(1.0, _number(fields.get("n"), 1.0))
    if unit is Unit.CHARACTERS:
        text = fields.get("input")
        return float(len(text)) if isinstance(text, str) else float(size or _length_of(request) or MAX_UPLOAD)
    if unit is Unit.SEARCH:
        return search_units(fields)
    if unit is Unit.SECOND:
        return _number(fields.get("seconds", fields.get("duration")), DEFAULT_SECONDS)
    if unit is Unit.MINUTE:
        return 60.0 if request.opens_websocket else seconds_of_upload(_length_of(request) or MAX_UPLOAD)
    return 0.0


def _number(value: object, default: float) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else default
    except ValueError:
        return default
    return number if 0.0 <= number < 10**9 else default


def _length_of(request: RequestContext) -> int:
    body, length = request.body_source.buffered_body, request.headers.get("content-length", "")
    if body is not None:
        return len(body)
    return int(length) if length.isascii() and length.isdigit() and len(length) < 16 else 0


class RouteMeter:
    """Meters the calls of one route. `members` are its backends with their prices. `passable` are those of them that
    take requests which no dialect reads. `prices` are those of all backends."""

    def __init__(
        self,
        members: Mapping[str, Tariff],
        passable: Collection[str],
        prices: Mapping[str, Tariff],
        largest: str,
        clock: Clock,
    ) -> None:
        self._members = members
        self._passable = {name: price for name, price in members.items() if name in passable}
        self._prices = prices
        self._largest = largest
        self._clock = clock
        self._lengths: BoundedCache[str, TypicalLength] = BoundedCache(MAX_KINDS)
        # Until when. A tenant's choice of a form without usage, such as plain text, is none of the others' business.
        self._silent: BoundedCache[tuple[str, str, str], float] = BoundedCache(MAX_KINDS)

    def check(self, metered: MeteredCall, limits: Sequence[str]) -> None:
        """Raise `Forbidden` if one of these limits, `tokens` or `cost`, has nothing to count such a call by."""
        if metered.operation.is_free or metered.operation is CALL:
            return
        for name, tariff in self._candidates(metered).items():
            for limit in limits:
                if not self._has_meter(metered, limit, name, tariff.price(metered.model)):
                    raise Forbidden(_sentence(metered, limit, name))

    def reserve(self, metered: MeteredCall) -> Reservation:
        """Return what is reserved for a call, at the price of the most expensive backend that may answer."""
        if metered.operation.is_free:
            return Reservation()
        answers = metered.max_output != 0
        tokens = self._length_of(metered).reserve(metered.input_tokens, metered.max_output, answers=answers)
        return Reservation(
            self._estimate(metered, tokens.upper_input, tokens.upper_output),
            self._estimate(metered, tokens.likely_input, tokens.likely_output),
            self._estimate(metered, tokens.least_input, tokens.least_output),
        )

    def spent(
        self,
        metered: MeteredCall,
        backend: str | None,
        usage: AnswerUsage,
        output_estimate: int,
        *,
        complete: bool = True,
    ) -> Spent:
        """Return the cost of an answer. `output_estimate` is in tokens, and counts if the answer reports none. A
        `complete` answer has come to its end, which has the usage."""
        if metered.operation.is_free:
            return Spent()
        backend = backend or self._largest
        price, counts = self._price(metered, backend), usage.tokens
        if counts is None and self._is_silent(metered, backend, price):
            if complete:
                key = backend, metered.kind, metered.tenant
                self._silent.put(key, self._clock.monotonic() + SILENCE_S)
            likely = self._length_of(metered).reserve(metered.input_tokens, metered.max_output)
            return self._priced(metered, price, Tokens(likely.likely_input, likely.likely_output), usage, priced=True)
        if counts is None:
            output = output_estimate if metered.max_output != 0 and metered.operation.writes_text else 0
            if metered.call is not None and metered.call.uncached is Bypass.BACKGROUND:  # its answer comes later
                output = self._length_of(metered).reserve(0, metered.max_output).likely_output
            estimated = Tokens(metered.input_tokens, output)
            return self._priced(metered, price, estimated, usage, priced=metered.operation.reads_text)
        self._length_of(metered).observe(metered.input_tokens, metered.max_output, counts[0], counts[1])
        return self._priced(metered, price, counts, usage, priced=True)

    def spent_by_socket(self, metered: MeteredCall, backend: str | None, usage: AnswerUsage, seconds: float) -> Spent:
        """Return the cost of a usage that a message of a WebSocket reports, and of the time since the last one."""
        price, counts = self._price(metered, backend), usage.tokens or Tokens()
        per_second = price.of_unit(Unit.MINUTE)
        if usage.tokens is not None:
            self._length_of(metered).observe(0, None, counts[0], counts[1])
        dollars = price.of(*counts) if per_second is None else per_second * seconds
        return Spent(*counts, dollars=dollars, is_priced=price.is_stated)

    def spent_by_others(self, metered: MeteredCall, usages: Sequence[Usage]) -> Sequence[tuple[str, Spent]]:
        """Return the cost of other calls that were made for an answer, with their backends."""
        prices = [(usage, self._price(metered, usage.backend)) for usage in usages]
        return [
            (usage.backend, Spent(*usage.tokens, dollars=price.of(*usage.tokens), is_priced=price.is_stated))
            for usage, price in prices
        ]

    def opened(self, metered: MeteredCall, backend: str | None) -> Spent:
        """Return the cost of a WebSocket that is opened, besides what it does."""
        return Spent(dollars=self._price(metered, backend).of_call(metered.path) or 0.0)

    def read_alone(self, metered: MeteredCall) -> Spent:
        """Return the cost of a call whose client left before an answer came: the backend may have read its input."""
        if metered.call is None:
            return Spent()
        tokens, price = metered.input_tokens, self._price(metered, None)
        return Spent(tokens, dollars=price.of(tokens, 0), is_priced=price.is_stated)

    def _price(self, metered: MeteredCall, backend: str | None) -> Price:
        """Return the price of a call at a backend, or at the largest one for None."""
        return self._prices.get(backend or self._largest, UNPRICED).price(metered.model)

    def _candidates(self, metered: MeteredCall) -> Mapping[str, Tariff]:
        return self._members if metered.call is not None else self._passable

    def _has_meter(self, metered: MeteredCall, limit: str, backend: str, price: Price) -> bool:
        operation = metered.operation
        if _is_covered(metered, price):
            return True
        silent_until = self._silent.peek((backend, metered.kind, metered.tenant))
        reports = operation.reports and (silent_until is None or silent_until <= self._clock.monotonic())
        return (reports or operation.reads_text) and (limit == "tokens" or price.has_tokens)

    def _is_silent(self, metered: MeteredCall, backend: str, price: Price) -> bool:
        """Return whether an answer without usage leaves nothing to meter its call by."""
        operation = metered.operation
        return operation.reports and not operation.reads_text and not _is_covered(metered, price)

    def _length_of(self, metered: MeteredCall) -> TypicalLength:
        length = self._lengths.get(metered.kind)
        if length is None:
            length = TypicalLength()
            self._lengths.put(metered.kind, length)
        return length

    def _estimate(self, metered: MeteredCall, input_count: int, output_count: int) -> CostEstimate:
        model, counts = metered.model, Tokens(input_count, output_count)
        return max(
            (
                self._priced(metered, tariff.price(model), counts, AnswerUsage(), priced=True).cost
                for tariff in self._members.values()
            ),
            key=lambda cost: cost.micros,
            default=CostEstimate(input_count + output_count),
        )

    def _priced(self, metered: MeteredCall, price: Price, counts: Tokens, usage: AnswerUsage, *, priced: bool) -> Spent:
        """Return the cost. With `priced` the tokens cost something, unless a unit does."""
        dollars = price.of_call(metered.path, named=metered.operation.makes_calls) or 0.0
        unit = metered.operation.unit
        per_unit = price.of_unit(unit)
        if per_unit is not None:
            amount = usage.amount_of(unit)
            dollars += per_unit * (metered.quantity if amount is None else amount)
        elif priced:
            dollars += price.of(*counts)
        return Spent(*counts, dollars=dollars, is_priced=price.is_stated)


def _is_covered(metered: MeteredCall, price: Price) -> bool:
    operation = metered.operation
    if price.of_unit(operation.unit) is not None:
        return True
    return price.of_call(metered.path, named=operation.makes_calls) is not None


def _sentence(metered: MeteredCall, limit: str, backend: str) -> str:
    path = metered.path[:100]
    example = EXAMPLES.get(metered.operation.unit)
    ways = f'per_call: {{"{path}": 0.01}}' if example is None else f'{example}, or per_call: {{"{path}": 0.01}}'
    more = "; or set jobs.batches: on, so that each line counts" if path.endswith("/batches") else ""
    what = "tokens" if limit == "tokens" else "cost"
    return (
        f"calls have a limit of {what} here, and nothing meters {metered.method} {path} at backend '{backend}': "
        f"state its price in the configuration of the backend, such as price: {{{ways}}} (0: free of charge){more}"
    )
