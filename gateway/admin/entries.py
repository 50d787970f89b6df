"""Admin operations that show one stored answer in detail, and the answers with the most hits.

Questions and answers are shown only if their route has `record: {prompts: on}` in the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from aiohttp import web
from pydantic import Field

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import int_parameter, json_errors, json_response
from gateway.cache.bans import SHOWN_DIGITS
from gateway.cache.hits import call_of
from gateway.config.policy.model import Policy
from gateway.dialects.known import DIALECTS
from gateway.entries import Entry
from gateway.errors import NotFound
from gateway.feature import features_of

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
MAX_TEXT_CHARS = 4_000  # characters of an answer, and of a question


class EntryReport(TypedDict):
    fingerprint: str
    scope: str
    tenant: str
    """The first characters of the tenant."""
    route: str
    model: str
    backend: str
    operation: str
    dialect: str
    tags: list[str]
    age_s: float
    expires_in_s: float
    bytes: int
    streamed: bool
    input_tokens: int
    output_tokens: int
    cost_dollars: float
    upstream_s: float
    """Seconds that the backend took."""
    imported: bool


class EntryTexts(TypedDict):
    prompts: bool
    """Whether the policy allows operators to see the texts."""
    question: str | None
    answer: str | None


class EntryDetails(EntryReport, EntryTexts):
    pass


class TopEntry(EntryReport):
    hits: float
    question: str | None


class TopQuery(TypedDict, total=False):
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, default=DEFAULT_LIMIT)]


class TopEntries(TypedDict):
    entries: list[TopEntry]
    prompts_of: list[str]
    """The routes whose questions and answers may be shown."""


@dataclass(frozen=True, slots=True)
class EntriesAdmin:
    """`EntriesAdmin` serves details of stored answers. Hits are those that this gateway has counted since its
    start."""

    core: AdminCore

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/cache/top", json_errors(self._get_top)),
            web.get("/admin/cache/entries/{fingerprint}", json_errors(self._get_entry)),
        ]

    @operation(EntryDetails)
    async def _get_entry(self, request: web.Request) -> web.Response:
        """Show one stored answer. `question` and `answer` are null unless its route has `record: {prompts: on}`."""
        entry = await self.core.parts().store.get(request.match_info["fingerprint"])
        if entry is None:
            raise NotFound("no such answer is stored: it has expired, was removed or was never there")
        return json_response({**self._entry_report(entry), **self._texts(entry)})

    @operation(TopEntries, query=TopQuery)
    async def _get_top(self, request: web.Request) -> web.Response:
        """List the stored answers with the most hits in this gateway since its start."""
        entries: list[TopEntry] = []
        for fingerprint, hits in await self.core.parts().evictions.most_used(
            int_parameter(request, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        ):
            entry = await self.core.parts().store.get(fingerprint)
            if entry is not None:
                entries.append({**self._entry_report(entry), "hits": hits, "question": self._texts(entry)["question"]})
        routes = [route.name for route in self.core.policy().routes if _may_show(route.name, self.core.policy())]
        return json_response({"entries": entries, "prompts_of": routes})

    def _entry_report(self, entry: Entry) -> EntryReport:
        now = self.core.clock.wall()
        return {
            "fingerprint": entry.fingerprint,
            "scope": entry.scope,
            "tenant": entry.tenant[:SHOWN_DIGITS],
            "route": entry.route,
            "model": entry.model,
            "backend": entry.backend,
            "operation": entry.operation,
            "dialect": entry.dialect,
            "tags": list(entry.tags),
            "age_s": round(max(0.0, now - entry.created), 3),
            "expires_in_s": round(entry.expires - now, 3),
            "bytes": entry.size,
            "streamed": entry.streamed,
            "input_tokens": entry.input_tokens,
            "output_tokens": entry.output_tokens,
            "cost_dollars": entry.cost_dollars,
            "upstream_s": round(entry.upstream_s, 3),
            "imported": entry.imported > 0,
        }

    def _texts(self, entry: Entry) -> EntryTexts:
        """Return question and answer. Return None if they may not be shown, or are not text."""
        if not _may_show(entry.route, self.core.policy()):
            return {"prompts": False, "question": None, "answer": None}
        dialect = DIALECTS.get(entry.dialect)
        call = None if dialect is None else call_of(entry, dialect)
        answer = None if dialect is None or call is None else dialect.answer_text(call, entry.payload, entry.streamed)
        return {"prompts": True, "question": _truncate(entry.question), "answer": _truncate(answer)}


def _may_show(route: str, policy: Policy) -> bool:
    routes = [each for each in policy.routes if each.name == route]
    return any(feature.shows_prompts(each) for each in routes for feature in features_of(each))


def _truncate(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + " …"
