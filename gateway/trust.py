"""Trust in stored answers: the clients that an unconfirmed answer serves, and when it serves its whole scope. Pure.

A scope says who may share answers at all. Trust may only narrow that. An entry names its askers: its writer first, then
the independent clients whose own fresh answers agreed with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.messages import Entry

HALF = 32  # hex digits of each digest: 128 bits


@dataclass(frozen=True, slots=True)
class Asker:
    """A client, as the trust of its route tells clients apart. `confirm` None: no number of askers makes an entry
    serve others."""

    name: str  # the kind, the digest of the credential, and that of the circle that an unconfirmed entry serves
    confirm: int | None

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

    def with_askers(self, entry: Entry, names: Iterable[str]) -> Entry:
        """Return the entry with those of `names` as askers that are independent of the ones it has.

        Names of another kind were told apart in another way, so they do not count. Further askers than `confirm` are
        left out.
        """
        found = [name for name in entry.askers if _kind(name) == _kind(self.name)]
        for name in names:
            independent = all(_credential(name) != _credential(other) for other in found)
            if independent and _kind(name) == _kind(self.name) and len(found) < (self.confirm or 0):
                found.append(name)
        return entry if tuple(found) == entry.askers else replace(entry, askers=tuple(found))


def same_writer(a: Entry, b: Entry) -> bool:
    """Return whether the writers of two entries are not independent."""
    return {_credential(name) for name in a.askers[:1]} == {_credential(name) for name in b.askers[:1]}


def asker_name(kind: str, credential: str, circle: str) -> str:
    """Return the name of an asker. `kind`: one letter. `credential`, `circle`: at least `HALF` hex digits."""
    return kind + credential[:HALF] + circle[:HALF]


def _kind(name: str) -> str:
    return name[:1]


def _credential(name: str) -> str:
    return name[1 : 1 + HALF]


def _circle(name: str) -> str:
    return name[1 + HALF :]
