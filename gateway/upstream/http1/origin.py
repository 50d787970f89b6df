"""Where requests go: scheme, host and port. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from yarl import URL


@dataclass(frozen=True, slots=True)
class Origin:
    host: str  # a name in ASCII, or an address without brackets
    port: int
    tls: bool
    authority: str  # what the header Host says: the port only where it is not the scheme's

    @classmethod
    def of(cls, url: str) -> Origin:
        """Raises `ValueError` where `url` is no absolute one of http or https."""
        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.raw_host or parsed.port is None:
            raise ValueError("expected an absolute URL of http or https")
        authority = parsed.host_port_subcomponent or parsed.raw_host
        return cls(parsed.raw_host.rstrip("."), parsed.port, parsed.scheme == "https", authority)
