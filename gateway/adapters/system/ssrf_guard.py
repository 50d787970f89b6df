"""The targets that webhooks may have. Pure: it checks URLs and IP addresses.

Every resolved address is checked again where the connection is made (`gateway.features.jobs.webhook_client`).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

MAX_URL = 2048
# IPv6 networks that embed IPv4 addresses, which are checked instead: NAT64 (RFC 6052), IPv4-compatible.
NAT64 = IPv6Network("64:ff9b::/96")
COMPATIBLE = IPv6Network("::/96")
# Networks that are not public, although some versions of Python classify them as global.
NON_GLOBAL_NETWORKS = tuple(
    IPv6Network(net) for net in ("64:ff9b:1::/48", "fec0::/10", "2001:db8::/32", "5f00::/16", "100::/64")
)


class TargetRefused(ValueError):
    """A target is refused. The message is one sentence for the client that named it."""


def check_url(url: object, allowed: frozenset[str]) -> str:
    """Return `url` if it is an acceptable target. Raise `TargetRefused` otherwise.

    `allowed` lists hosts, as `host` or `host:port`, that may be private and may use plain http.
    """
    if not isinstance(url, str) or not url or len(url) > MAX_URL or not url.isascii() or not url.isprintable():
        raise TargetRefused(f"expected a URL such as https://app.example/hook of at most {MAX_URL} characters")
    if " " in url or "\\" in url:
        raise TargetRefused("a URL has neither spaces nor backslashes")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise TargetRefused("it is not a valid URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise TargetRefused("expected a URL such as https://app.example/hook")
    if parts.username is not None or parts.password is not None:
        raise TargetRefused("it must not contain a user or a password")
    if is_allowed(host, port or (443 if parts.scheme == "https" else 80), allowed):
        return url
    if parts.scheme != "https":
        raise TargetRefused("expected https; jobs.webhook_hosts lists hosts that may use plain http")
    if _parse_ip(host) is not None and not is_public(host):
        raise TargetRefused("its address is not public; jobs.webhook_hosts lists private hosts that are allowed")
    return url


def is_allowed(host: str, port: int, allowed: frozenset[str]) -> bool:
    """Return whether the operator has listed the host."""
    named = host.lower()
    bracketed = f"[{named}]" if ":" in named else named
    return bool({named, bracketed, f"{bracketed}:{port}"} & {entry.lower() for entry in allowed})


def is_public(address: str) -> bool:
    """Return whether an IP address is public. `address` is in the form of the system's resolver. If it embeds an IPv4
    address, that one decides."""
    ip = _parse_ip(address)
    if ip is None:
        return False
    if isinstance(ip, IPv6Address):
        within = _embedded_ipv4(ip)
        if within is not None:
            return is_public(str(within))
        if any(ip in net for net in NON_GLOBAL_NETWORKS) or ip.teredo is not None:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not ip.is_unspecified


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in NAT64 or (address in COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
