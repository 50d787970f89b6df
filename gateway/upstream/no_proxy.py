"""The hosts that are called without a proxy, as `NO_PROXY` lists them. Pure.

No standard says what the list means. This module reads the forms of curl and of Go, which most tools in containers
follow. The readers of `requests` and `urllib` do not know ports of addresses, networks of IPv6, or `*` in a list.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from yarl import URL

_SEPARATORS = re.compile(r"[\s,]+")
# A host, or an IPv6 address in brackets, with a port. An address without brackets has no port.
_WITH_PORT = re.compile(r"(\[[^\]]+\]|[^:]+):(\d{1,5})", re.ASCII)


def is_direct(url: str, excluded: str) -> bool:
    """Return whether a URL is called without a proxy. `excluded` is the value of `NO_PROXY`.

    An entry is `*`, a host, a domain, which stands for all hosts below it, an IP address or a network. A host and an
    address may have a port. Names are not resolved. An entry of another form excludes nothing.
    """
    target = URL(url)
    host = (target.host or "").lower().rstrip(".")
    address = _address_of(host)
    return any(
        entry == "*" or _matches(entry.lower(), host, address, target.port)
        for entry in _SEPARATORS.split(excluded)
        if entry
    )


def _matches(entry: str, host: str, address: IPv4Address | IPv6Address | None, port: int | None) -> bool:
    if with_port := _WITH_PORT.fullmatch(entry):
        entry = with_port[1]
        if int(with_port[2]) != port:
            return False
    entry = entry.removeprefix("[").removesuffix("]")
    if address is not None:
        return address == _address_of(entry) or ("/" in entry and _is_within(address, entry))
    domain = entry.removeprefix("*").strip(".")
    return bool(domain) and (host == domain or host.endswith("." + domain))


def _address_of(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_within(address: IPv4Address | IPv6Address, network: str) -> bool:
    try:
        return address in ip_network(network, strict=False)
    except ValueError:
        return False
