"""`GET /admin/spend`: who spent how much, and what hits saved."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import NotRequired, TypedDict, operation
from gateway.admin.responses import json_errors, json_response
from gateway.errors import BadRequest
from gateway.features.spend.periods import PeriodQuery, first_of_month, hours_of, iso_time
from gateway.features.spend.rows import DIMENSIONS, HOUR_S, PERIODS, Counts, Groups, add_hour, dollars, report
from gateway.features.spend.store import SpendStore

CSV = "text/csv"

# The columns of the FOCUS specification 1.2 that fit, by our names. https://focus.finops.org
FOCUS = {
    "tenant": "SubAccountId",
    "backend": "ServiceName",
    "model": "SkuId",
    "key": "x_ApiKey",
    "user": "x_User",
    "route": "x_Route",
    "day": "x_Day",
    "hour": "x_Hour",
}
MAX_ROWS = 100_000  # of a report, some 500 bytes each


class SpendQuery(PeriodQuery, total=False):
    by: Annotated[str, Field(examples=["tenant,model"])]
    """The dimensions of a row, separated by commas: tenant, key, user, route, backend, model, day, hour.
    Default: tenant,model."""
    tenant: str
    """Only this tenant."""
    format: Literal["json", "csv"]
    """`csv`: comma-separated values with the names of FOCUS."""


class SpendTotal(TypedDict):
    requests: int
    hits: int
    tokens: int
    cost: float | None
    """US dollars. Null: no call of it has a price."""
    saved: float
    """US dollars that hits saved."""
    not_priced: NotRequired[int]
    """The calls without a price, if there are any."""


class SpendRow(SpendTotal):
    tenant: NotRequired[str]
    key: NotRequired[str]
    user: NotRequired[str]
    route: NotRequired[str]
    backend: NotRequired[str]
    model: NotRequired[str]
    day: NotRequired[str]
    """Such as 2026-11-29 (UTC)."""
    hour: NotRequired[str]
    """Such as 2026-11-29T06:00Z."""


class SpendReport(TypedDict):
    rows: list[SpendRow]
    total: SpendTotal


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """The rows that a report has. Hours count from the epoch."""

    by: Sequence[str]
    first: int
    end: int
    tenant: str | None


class SpendAdmin:
    """`SpendAdmin` serves `GET /admin/spend`."""

    def __init__(self, core: AdminCore) -> None:
        self._store = SpendStore(core.stores.redis)
        self._clock = core.clock

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/spend", json_errors(self._get))]

    @operation(SpendReport, query=SpendQuery)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Report the spend of all gateways on the store, up to the last second: the rows with the highest cost first.
        Routes without `spend` are not in it."""
        wanted = self._report_request(request)
        groups: Groups = {}
        async for hour, page in self._store.read(wanted.first, wanted.end):
            matching = [row for row in page if wanted.tenant in (None, row[0].tenant)]
            add_hour(groups, hour, matching, wanted.by)
            if len(groups) > MAX_ROWS:
                raise BadRequest(
                    f"a report has at most {MAX_ROWS:,} rows: expected a shorter time, or other dimensions"
                )
        if request.query.get("format") == "csv":
            return web.Response(text=as_csv(groups, wanted), content_type=CSV)
        return json_response(report(groups, wanted.by))

    def _report_request(self, request: web.Request) -> ReportRequest:
        """Raise `BadRequest`."""
        query, now = request.query, int(self._clock.wall())
        by = list(dict.fromkeys(filter(None, query.get("by", "tenant,model").split(","))))
        known = (*DIMENSIONS, *PERIODS)
        if not by or any(name not in known for name in by):
            raise BadRequest(f"by: expected some of {', '.join(known)}, got {','.join(by)[:100]!r}")
        if query.get("format", "json") not in ("json", "csv"):
            raise BadRequest("format: expected json or csv")
        return ReportRequest(by, *hours_of(query, now, first_of_month(now)), query.get("tenant"))


# The columns of the figures, those of our own with `x_`.
FIGURES = (
    *("ConsumedQuantity", "ConsumedUnit", "BilledCost", "x_Requests", "x_Hits", "x_InputTokens", "x_CachedInputTokens"),
    *("x_OutputTokens", "x_ReasoningTokens", "x_SavedTokens", "x_SavedCost", "x_CallsNotPriced"),
)
# A spreadsheet may take a text for a formula that begins with one of these. It reads the wide ones like the others.
FORMULA = tuple(
    "=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)


def as_csv(groups: Groups, wanted: ReportRequest) -> str:
    """Return the rows with the columns of FOCUS. An empty cost: not priced."""
    period = iso_time(wanted.first * HOUR_S), iso_time(wanted.end * HOUR_S), "Usage", "USD"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")  # RFC 4180
    begin = "ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "BillingCurrency"
    writer.writerow((*begin, *(FOCUS[name] for name in wanted.by), *FIGURES))
    writer.writerows((*period, *map(_cell, names), *_figures(counts)) for names, counts in groups.items())
    return out.getvalue()


def _figures(counts: Counts) -> tuple[int | str, ...]:
    unpriced = counts.calls and counts.unpriced == counts.calls
    return (
        *(counts.input + counts.output, "Tokens", "" if unpriced else f"{dollars(counts.cost):.9f}"),
        *(counts.requests, counts.hits, counts.input, counts.cached, counts.output, counts.reasoning),
        *(counts.saved_tokens, f"{dollars(counts.saved):.9f}", counts.unpriced),
    )


def _cell(name: str) -> str:
    """Return a name of a client, so that no spreadsheet takes it for a formula."""
    return f"'{name}" if name.startswith(FORMULA) else name
