"""The keys of a backend about the way to it: TLS, a proxy, and headers of the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from gateway.config.fields import File, TlsFiles, http_url, parse_header_name
from gateway.config.schema_types import ON_OR_OFF, Shorthand, any_of
from gateway.config.validation import Problem

ENVIRONMENT = "environment"
MAX_HEADERS = 64
# Of the connection, of the body, or made by the gateway itself.
_NOT_FREE = frozenset(
    {
        "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
        "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{1,8192}")


class BackendTls(TlsFiles):
    """TLS to the servers of a backend."""

    certificate: File | None = None
    """PEM file with the client certificate, for servers that ask for one. A new file counts from the next connection
    on."""

    def in_folder(self, folder: Path) -> BackendTls:
        """Return the section with its paths resolved against a folder."""
        return self.model_copy(update={name: (folder / file).absolute() for name, file in self if file is not None})


def _headers(value: object) -> object:
    """Check the mapping as a whole. A value may be a secret, so no fault repeats one."""
    if not isinstance(value, dict):
        return value
    checked: dict[str, str] = {}
    for given, text in value.items():
        name = parse_header_name(given)
        if name in _NOT_FREE or name.startswith("x-nearhit-"):
            raise ValueError(f"{name} is not for the configuration to set, expected another header")
        if not isinstance(text, str) or not _VALUE.fullmatch(text) or text != text.strip():
            raise ValueError(f"the value of {name} is none, expected one line of text without white space around it")
        if name in checked:
            raise ValueError(f"{name} is there twice, expected each header once")
        checked[name] = text
    if len(checked) > MAX_HEADERS:
        raise ValueError(f"expected at most {MAX_HEADERS} headers, got {len(checked)}")
    return checked


def _proxy(value: object) -> str | None:
    if value is None or value is False or value == "off":
        return None
    if value == ENVIRONMENT:
        return ENVIRONMENT
    url = http_url(value, f"http://proxy:3128, {ENVIRONMENT} or off", f"proxy: {ENVIRONMENT}")
    if not url.startswith("http://"):
        raise ValueError("expected the URL of a proxy that is called without TLS, such as http://proxy:3128")
    return url


BackendHeaders = Annotated[Mapping[str, str], BeforeValidator(_headers)]

ProxySetting = Annotated[
    str | None,
    BeforeValidator(_proxy, json_schema_input_type=str | bool | None),
    Shorthand(lambda inner: any_of(inner, {"const": False})),
    ON_OR_OFF,
]
"""None: no proxy."""


def transport_problems(settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the contradictions between `tls` and the addresses of a backend."""
    if settings.get("tls") is None:
        return
    listed = settings.get("upstreams")
    urls = (
        [each.get("url") if isinstance(each, Mapping) else each for each in listed] if isinstance(listed, list) else []
    )
    if any(isinstance(url, str) and url.lower().startswith("http://") for url in (settings.get("url"), *urls)):
        yield Problem("tls", "is for https:// and there is an http:// URL, expected https://, or no tls")
