"""Trust in stored answers: the clients that an unconfirmed answer serves, and when it serves its whole scope. Pure.

A scope says who may share answers at all. Trust may only narrow that. An entry names its askers: its writer first, then
the independent clients whose own fresh answers agreed with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from gateway.cache.keys import asker_digest, framed
from gateway.context import RequestContext, RequestState
from gateway.entries import Entry
from gateway.features.trust.rule import TrustRule

HALF = 32  # hex digits of each digest: 128 bits


class Unconfirmed(RequestState):
    """The stored answers of other clients that the fresh answer of a request may confirm."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: Sequence[Entry] = ()


@dataclass(frozen=True, slots=True)
class RouteAsker:
    """A client, as the trust of its route tells clients apart. Without `confirm` no number of askers makes an entry
    serve others."""

    name: str  # the kind, the digest of the credential, and that of the circle that an unconfirmed entry serves
    confirm: int | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def circle(self) -> str:
        """The clients that an unconfirmed entry of this client serves."""
        return _kind(self.name) + _circle(self.name)

    def may_have(self, entry: Entry) -> bool:
        """Return whether an entry of this scope may serve the client.

        An entry without askers was stored under another trust, and its writer is not known. It serves nobody, unless an
        operator has imported it.
        """
        circles = [_circle(name) for name in entry.askers if _kind(name) == _kind(self.name)]
        return self.confirms(entry) or _circle(self.name) in circles

    def confirms(self, entry: Entry) -> bool:
        """Return whether an entry serves its whole scope: enough independent clients agree, or an operator has
        imported it."""
        if not entry.askers:
            return entry.imported > 0
        known = [name for name in entry.askers if _kind(name) == _kind(self.name)]
        return self.confirm is not None and len(known) >= self.confirm

    def own_key(self, fingerprint: str) -> str:
        """Return the exact key of the client's circle. Others of the scope find its entries by similarity only, where
        the confirmation is checked."""
        return sha256(b"nearhit/1/own" + framed((fingerprint, self.circle))).hexdigest()

    def withhold(self, request: RequestContext, entries: Sequence[Entry]) -> None:
        request.of(Unconfirmed).entries = entries

    def is_same_writer(self, a: Entry, b: Entry) -> bool:
        return {_credential(name) for name in a.askers[:1]} == {_credential(name) for name in b.askers[:1]}

    def with_askers(self, entry: Entry, names: Iterable[str]) -> Entry:
        """Return the entry with those of `names` as askers that are independent of the ones it has.

        Names of another kind were told apart in another way, so they do not count. Further askers than `confirm` are
        left out.
        """
        askers = [name for name in entry.askers if _kind(name) == _kind(self.name)]
        for name in names:
            independent = all(_credential(name) != _credential(other) for other in askers)
            if independent and _kind(name) == _kind(self.name) and len(askers) < (self.confirm or 0):
                askers.append(name)
        return entry if tuple(askers) == entry.askers else replace(entry, askers=tuple(askers))


def asker_of(rules: TrustRule, tenant: str, key: str, user: str | None) -> RouteAsker:
    """Return the client as `rules.trust` tells clients apart. `key` is the id of its API key, or empty if it has
    none.

    A name has digests only, with the length prefixes of the keys. `trust: tenant` knows tenants. Otherwise an
    unconfirmed entry serves one key and user, and the confirming client has another key, or by `confirm_by: user`
    another user or key.
    """
    if rules.trust == "tenant":
        party = asker_digest(tenant)
        return RouteAsker(asker_name("t", party, party), rules.confirm)
    circle = asker_digest(tenant, key, user or "")
    if rules.confirm_by == "user":
        return RouteAsker(asker_name("u", circle, circle), rules.confirm)
    return RouteAsker(asker_name("k", asker_digest(tenant, key), circle), rules.confirm)


def asker_name(kind: str, credential: str, circle: str) -> str:
    """Return the name of an asker. `kind` is one letter. `credential` and `circle` have at least `HALF` hex digits."""
    return kind + credential[:HALF] + circle[:HALF]


def _kind(name: str) -> str:
    return name[:1]


def _credential(name: str) -> str:
    return name[1 : 1 + HALF]


def _circle(name: str) -> str:
    return name[1 + HALF :]
