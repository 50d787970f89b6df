"""What the head of a request comes to under the policy in force, found out once for all that have the same: whose
request it is, and that nothing in it is for the stages alone to decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gateway.access.key_text import digest_of
from gateway.access.keyring import Keyring
from gateway.access.permits import Permit
from gateway.cache.directives import bypass_of, parse_directives
from gateway.credentials import key_of, tenant_of
from gateway.data_port.heads import TRACING, Head
from gateway.dialects.known import MODELS, dialect_of
from gateway.dialects.openai import OpenAI
from gateway.jobs.submission import OWN, wants_async
from gateway.policy.model import Policy
from gateway.routing.budget import HEADERS as BUDGETS

if TYPE_CHECKING:
    from gateway.data_port.sought import Known
    from gateway.data_port.ways import Way

MAX_PLANS = 2048  # of some kB each; likewise what they know of models, together
MAX_NAME = 256  # bytes of a model's name; clients choose them
# Where a call's model most likely is: its hint. Where it is not, the call is read in vain, or goes through the stages.
MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')
LOOKED_AT = 64 * 1024  # bytes of a body, for that; a longer one takes its time anyway
METHODS = frozenset({"DELETE", "GET", "PATCH", "POST", "PUT"})  # an answer to HEAD is framed otherwise
UNDECIDED = TRACING | {"connection", "content-length"}  # not in `Head.decisive`


class Table(Protocol):
    """`gateway.stages.policy.RouteTable`."""

    @property
    def policy(self) -> Policy: ...

    @property
    def chains(self) -> Mapping[str, Any]: ...


class Plan:
    """`digest`: of the key that the head shows, where the gateway asks for it; `dialect` None: none knows it;
    `bypasses`: no stored answer is wanted. What is
    known of requests for a model is noted by its name, empty where no dialect reads it; None: the stages are to be
    asked."""

    __slots__ = ("bypasses", "dialect", "digest", "known", "permit", "table", "tenant", "ways")

    def __init__(
        self,
        table: Table,
        dialect: OpenAI | None,
        tenant: str,
        digest: str,
        permit: Permit | None,
        *,
        bypasses: bool,
    ) -> None:
        self.table = table
        self.dialect = dialect
        self.tenant = tenant
        self.digest = digest
        self.permit = permit
        self.bypasses = bypasses
        self.ways: dict[bytes, Way | None] = {}  # to a backend
        self.known: dict[bytes, Known | None] = {}  # how they are looked up


class Plans:
    """By `Head.decisive`. `table`: the policy in force; `keyring` None: backends judge the credentials."""

    def __init__(self, table: Callable[[], Table], keyring: Keyring | None) -> None:
        self._table = table
        self._keyring = keyring
        self._under: Table | None = None
        self.passing = self.calls = self.lookups = False  # whether there are routes of which something can be known
        self._plans: dict[bytes, Plan | None] = {}
        self._noted = 0

    def of(self, head: Head) -> Plan | None:
        """None: the stages are to be asked."""
        table = self._table()
        if table is not self._under:
            self._met(table)
        if not (self.passing or self.lookups):
            return None
        try:
            plan = self._plans[head.decisive]
        except KeyError:
            return self._planned(head, table)
        if plan is not None and self._keyring is not None and self._keyring.at_hand(plan.digest) is not plan.permit:
            del self._plans[head.decisive]  # it has changed, or is to be asked for
            return None
        return plan

    def noted(self) -> None:
        """When a plan has come to know of one model more."""
        self._noted += 1
        if self._noted > MAX_PLANS:
            self._forget()

    def _met(self, table: Table) -> None:
        self._under = table
        self._forget()
        directs = [chains.direct for chains in table.chains.values() if chains.direct is not None]
        self.passing, self.calls = bool(directs), any(direct.calls for direct in directs)
        self.lookups = any(chains.beforehand is not None for chains in table.chains.values())

    def _forget(self) -> None:
        self._plans.clear()
        self._noted = 0

    def _planned(self, head: Head, table: Table) -> Plan | None:
        if len(self._plans) >= MAX_PLANS:
            self._forget()
        digest, permit = "", None
        if self._keyring is not None:
            digest = _digest_in(head)
            permit = self._keyring.at_hand(digest)
            if permit is None:
                return None  # may be at hand the next time
        plan = self._plans[head.decisive] = plan_of(head, table, digest, permit)
        return plan


def plan_of(head: Head, table: Table, digest: str, permit: Permit | None) -> Plan | None:
    """None where something is to be decided that only the stages do. `permit` None: backends judge the credentials."""
    headers = head.headers
    if permit is not None and (permit.models or permit.limits):
        return None
    if any(name in UNDECIDED for route in table.policy.routes for name, _ in route.match.headers):
        return None
    if "x-priority" in headers or any(name in headers for name in BUDGETS) or wants_async(headers):
        return None
    directives = parse_directives(headers.get("cache-control"))
    if directives.only_if_cached:
        return None
    dialect = dialect_of(head.method, head.path)
    if dialect is None:
        if head.method not in METHODS or OWN.fullmatch(head.path) or (head.path + "/").startswith(MODELS + "/"):
            return None
    elif not isinstance(dialect, OpenAI):
        return None
    tenant = tenant_of(headers) if permit is None else permit.tenant
    return Plan(table, dialect, tenant, digest, permit, bypasses=bypass_of(None, directives) is not None)


def _digest_in(head: Head) -> str:
    """Of the key that it shows; empty: it shows none."""
    text = key_of(head.headers)
    return "" if text is None else digest_of(text)
