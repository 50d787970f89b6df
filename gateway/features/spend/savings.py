"""The report on savings: what the gateway saved, and what that cost, as its books say. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.admin.operations import TypedDict
from gateway.cache.threshold.wrong_hits import wilson_interval
from gateway.features.spend.figures import GATEWAY, MICROS, Figures
from gateway.features.spend.rows import Counts, dollars
from gateway.observability.metrics import LATENCY_BUCKETS, quantile_of


@dataclass(frozen=True, slots=True)
class Share:
    """A share in [0, 1] with its 95 % interval. NaN: nothing is known."""

    share: float = math.nan
    low: float = 0.0
    high: float = 1.0


class ShownShare(TypedDict):
    share: float | None
    """A share in [0, 1]. Null: nothing is known."""
    low: float
    """The lower end of its 95 % interval."""
    high: float


class CacheSavings(TypedDict):
    requests: int
    answered: int
    """Requests that the caches answered, or that waited for the answer to an equal one."""
    exact: int
    semantic: int
    stale: int
    coalesced: int
    saved: float
    """US dollars that their answers cost when they were made."""
    saved_tokens: int
    audited: int
    """Semantic hits that were compared with a fresh answer."""
    wrong: int
    """Audits that found a wrong answer."""
    undecided: int
    audits_failed: int
    wrong_share: ShownShare
    """The share of wrong answers among semantic hits. It weights each audit by the chance that it was made, and has
    all audits that the routes remember."""
    p50_backend_ms: float | None
    """The median time of the backend calls that made the answers of the hits."""
    p50_hit_ms: float | None
    """The median time of these hits. Both medians are read from histograms."""


class RoutingSavings(TypedDict):
    requests: int
    """Requests of routes with several models that a backend answered."""
    light: int
    """Those of them that a lighter model than the best one answered."""
    saved: float | None
    """US dollars that the best model would have cost for the same tokens, less the cost of the light ones. Null: no
    such call has a price at both."""
    not_priced: int
    """Calls of light models that are not in `saved`."""
    audited: int
    """Answers of the light model that were compared with the best model's."""
    as_good: int
    undecided: int
    audits_failed: int
    kept: ShownShare
    """The share of the compared answers that were as good."""


class Costs(TypedDict):
    audits: float
    """US dollars of audits of hits and of light answers, with the judge."""
    trials: float
    """US dollars of calls for answers besides those that gave them, such as light answers that were rejected."""
    trials_failed: int
    """Requests that went on to a better model after a light answer."""
    cpu_s: float
    """CPU seconds of the gateways for requests. Counted with the first route that compares questions."""
    learning_cpu_s: float
    embedding_s: float
    """Seconds in which questions were embedded."""


class RouteSavings(TypedDict):
    route: str
    requests: int
    answered: int
    saved: float
    cost: float | None
    audited: int
    wrong: int
    light: int


class SavingsReport(TypedDict):
    sentence: str
    since: str
    """The hour with which the report begins (UTC)."""
    until: str
    """The time before which it ends: now, or the hour in `to`."""
    cache: CacheSavings
    routing: RoutingSavings | None
    """Null: no route has several models."""
    routing_sentence: str | None
    costs: Costs
    net: float | None
    """US dollars: the savings less the audits and trials. Null: no call has a price."""
    spent: float | None
    """US dollars of the calls of clients. Null: no call has a price."""
    not_priced: int
    """Calls without a price, which are in no figure in dollars."""
    routes: list[RouteSavings]


def savings(
    rows: Mapping[tuple[str, ...], Counts], figures: Mapping[str, Figures], wrong: Mapping[str, Share]
) -> dict[str, Any]:
    """Return a `SavingsReport` without its times. `rows` are the books by route, and `wrong` is the share of wrong
    semantic hits by route."""
    counts, total = Counts(), Figures()
    for each in rows.values():
        counts.add(each)
    for more in figures.values():
        total.add(more)
    cache, routing, costs = _cache(counts, total, _of_all(figures, wrong)), _routing(total), _costs(total)
    net = counts.saved + total.routed_nanos - total.audit_nanos - total.trial_nanos
    return {
        "sentence": sentence(cache),
        "cache": cache,
        "routing": routing,
        "routing_sentence": None if routing is None else routing_sentence(routing),
        "costs": costs,
        "net": None if _cost(counts) is None else dollars(net),
        "spent": _cost(counts),
        "not_priced": counts.unpriced,
        "routes": [
            _route(route, rows.get((route,), Counts()), figures.get(route, Figures()))
            for route in sorted({*(name for (name,) in rows), *figures} - {GATEWAY})
        ],
    }


def sentence(cache: CacheSavings) -> str:
    """Return the savings of the caches as one sentence."""
    parts = [f"{cache['answered']:,} of {cache['requests']:,} requests answered", f"{saved_text(cache)} saved"]
    if cache["audited"]:
        low, high = (percent(cache["wrong_share"][end]) for end in ("low", "high"))
        audited = f"{cache['wrong']:,} of {cache['audited']:,} audited wrong"
        parts.append(f"{audited} (95 %: {low} to {high} of the semantic hits)")
    elif cache["semantic"]:
        parts.append("none audited")
    before, after = cache["p50_backend_ms"], cache["p50_hit_ms"]
    if before is not None and after is not None:
        parts.append(f"p50 from {milliseconds(before)} to {milliseconds(after)} ms")
    return ", ".join(parts)


def routing_sentence(routing: RoutingSavings) -> str:
    """Return the savings of the choice among models as one sentence."""
    text = f"{routing['light']:,} of {routing['requests']:,} calls sent to the light model"
    kept = routing["kept"]
    compared = routing["audited"] - routing["undecided"]
    if kept["share"] is not None:
        text += f": kept quality in {percent(kept['share'])} of the {compared:,} audited"
        text += f" (95 %: {percent(kept['low'])} to {percent(kept['high'])})"
    else:
        text += ": none was audited, so nothing is known of their quality"
    return text if routing["saved"] is None else f"{text}, {money(routing['saved'])} saved"


def saved_text(cache: Mapping[str, Any]) -> str:
    """Return the dollars that hits saved, or their tokens where these have no price, or cost nothing."""
    if cache["saved"] == 0 and cache["saved_tokens"]:
        return f"{cache['saved_tokens']:,} tokens"
    return money(cache["saved"])


def money(amount: float) -> str:
    """Return dollars with cents, or with more digits below a dollar."""
    digits = 2 if abs(amount) >= 1 or not amount else 4 if abs(amount) >= 0.001 else 6
    return f"{'-' if amount < 0 else ''}${abs(amount):,.{digits}f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def milliseconds(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 10 else f"{ms:.2g}"


def _cache(counts: Counts, total: Figures, wrong: Share) -> CacheSavings:
    return {
        "requests": counts.requests,
        "answered": counts.hits,
        "exact": total.exact,
        "semantic": total.semantic,
        "stale": total.stale,
        "coalesced": total.coalesced,
        "saved": dollars(counts.saved),
        "saved_tokens": counts.saved_tokens,
        "audited": total.audits_right + total.audits_wrong + total.audits_undecided,
        "wrong": total.audits_wrong,
        "undecided": total.audits_undecided,
        "audits_failed": total.audits_failed,
        "wrong_share": _shown(wrong),
        "p50_backend_ms": _median(total.backend_times),
        "p50_hit_ms": _median(total.hit_times),
    }


def _routing(total: Figures) -> RoutingSavings | None:
    requests = total.light + total.large
    if not requests:
        return None
    decided = total.light_as_good + total.light_worse
    audited = decided + total.light_undecided
    kept = Share()
    if decided:
        # As for wrong hits, an undecided audit counts against the answer at one end, and for it at the other.
        low = wilson_interval(total.light_as_good / audited, audited)[0]
        high = wilson_interval((total.light_as_good + total.light_undecided) / audited, audited)[1]
        kept = Share(total.light_as_good / decided, low, high)
    is_priced = total.routed_nanos != 0 or total.light_unpriced < total.light or not total.light
    return {
        "requests": requests,
        "light": total.light,
        "saved": dollars(total.routed_nanos) if is_priced else None,
        "not_priced": total.light_unpriced,
        "audited": audited,
        "as_good": total.light_as_good,
        "undecided": total.light_undecided,
        "audits_failed": total.light_failed,
        "kept": _shown(kept),
    }


def _costs(total: Figures) -> Costs:
    return {
        "audits": dollars(total.audit_nanos),
        "trials": dollars(total.trial_nanos),
        "trials_failed": total.trials_failed,
        "cpu_s": total.request_micros / MICROS,
        "learning_cpu_s": total.learning_micros / MICROS,
        "embedding_s": total.embed_micros / MICROS,
    }


def _route(route: str, counts: Counts, figures: Figures) -> RouteSavings:
    return {
        "route": route,
        "requests": counts.requests,
        "answered": counts.hits,
        "saved": dollars(counts.saved),
        "cost": _cost(counts),
        "audited": figures.audits_right + figures.audits_wrong + figures.audits_undecided,
        "wrong": figures.audits_wrong,
        "light": figures.light,
    }


def _cost(counts: Counts) -> float | None:
    return None if counts.calls and counts.unpriced == counts.calls else dollars(counts.cost)


def _of_all(figures: Mapping[str, Figures], wrong: Mapping[str, Share]) -> Share:
    """Return the share of all routes: the means of the shares and of the ends, weighted by semantic hits. Such an
    interval is at least as wide as needed. A route of which nothing is known may be wrong in all."""
    hits = {route: each.semantic for route, each in figures.items() if each.semantic}
    known = {route: share for route, share in wrong.items() if not math.isnan(share.share)}
    if not hits or not known.keys() & hits.keys():
        return Share()
    total, unknown = sum(hits.values()), Share()
    told = {route: n for route, n in hits.items() if route in known}
    return Share(
        sum(n * known[route].share for route, n in told.items()) / sum(told.values()),
        sum(n * known.get(route, unknown).low for route, n in hits.items()) / total,
        sum(n * known.get(route, unknown).high for route, n in hits.items()) / total,
    )


def _shown(share: Share) -> ShownShare:
    return {"share": None if math.isnan(share.share) else share.share, "low": share.low, "high": share.high}


def _median(times: Sequence[int]) -> float | None:
    seconds = quantile_of(times, LATENCY_BUCKETS, 0.5)
    return None if seconds is None else round(1e3 * seconds, 3)
