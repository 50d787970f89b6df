"""Whether what a removal names is known. It is no fault where it is not: the store may have answers of before."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice

from gateway.admin.key_admin import Keychain
from gateway.cache.purge_report import Wanted
from gateway.config.errors import show
from gateway.config.policy.model import Policy
from gateway.errors import StoreUnavailable

LISTED = 20


class Names:
    """`policy` returns the one in force. `tenants`: those of the configuration's keys, `keychain` has others;
    None: they have no names, as backends judge their credentials."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        backends: Collection[str],
        tenants: Collection[str] | None,
        keychain: Keychain,
    ) -> None:
        self._policy = policy
        self._backends = backends
        self._tenants = tenants
        self._keychain = keychain

    async def unknown(self, wanted: Wanted) -> list[str]:
        """A sentence for each name that nothing has."""
        said = [
            unknown_name("route of the policy in force", wanted.route, [each.name for each in self._policy().routes]),
            unknown_name("backend of the configuration", wanted.backend, self._backends),
        ]
        if wanted.tenant is not None and self._tenants is not None and wanted.tenant not in self._tenants:
            said.append(unknown_name("tenant with a key", wanted.tenant, await self._with_keys(self._tenants)))
        return [sentence for sentence in said if sentence is not None]

    async def _with_keys(self, configured: Collection[str]) -> Collection[str] | None:
        """None: the store does not say."""
        try:
            return sorted({*configured, *(key.tenant for key in await self._keychain.listed())})
        except StoreUnavailable:
            return None


def unknown_name(what: str, name: str | None, known: Collection[str] | None) -> str | None:
    """None where `name` is among those, is not given, or where they are not known."""
    if name is None or known is None or name in known:
        return None
    listed = ", ".join(islice(known, LISTED)) or "none"
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"no {what} is called {show(name)} (there are: {listed}{more})"
