"""URLs that a configuration may hold. Each parser returns the URL without the slash at its end, or raises
`ValueError` with the whole sentence."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import BeforeValidator, WithJsonSchema

from gateway.config.errors import show
from gateway.config.schema_types import Form
from gateway.config.store_url import target_of


def http_url(value: object, example: str = "https://api.openai.com/v1", beside: str = "api_key_env") -> str:
    """An endpoint's base URL. Credentials in it would reach logs, so they are refused and not repeated: `beside` is the
    key that they belong to."""
    expected = f"expected a URL such as {example}"
    url = _split(value)
    if url is not None and "@" in url.netloc:
        raise ValueError(f"credentials in a URL end up in logs, {expected} with {beside} beside it")
    if url is None or url.scheme not in ("http", "https") or url.query or url.fragment:
        raise ValueError(f"{expected}, got {show(value)}")
    return url.geturl().rstrip("/")


def receiver_url(value: object) -> str:
    """The base URL of a receiver of OpenTelemetry's protocol over HTTP."""
    return http_url(value, "http://127.0.0.1:4318", "headers_env")


def grpc_url(value: object) -> str:
    """The address of a Triton server."""
    url = _split(value)
    if url is not None and url.scheme in ("grpc", "grpcs") and url.port and "@" not in url.netloc:
        rest = url.path.strip("/") or url.query or url.fragment
        if not rest:
            return url.geturl().rstrip("/")
    raise ValueError(f"expected grpc://HOST:PORT or grpcs://HOST:PORT, got {show(value)}")


def store_url(value: object) -> str:
    """`embedded`, or where an outside store is (`gateway.config.store_url`)."""
    target_of(value)
    return str(value)


def lite_file(url: str) -> bool:
    """Whether an index' URL names a file of Milvus Lite, and no server."""
    return url.endswith(".db") and "://" not in url


def index_url(value: object) -> str:
    """A Milvus server, or the name of a Milvus Lite file."""
    if isinstance(value, str) and value.isprintable() and lite_file(value):
        return value
    return http_url(value, "http://127.0.0.1:19530 or a file such as milvus.db", "token_env")


def _split(value: object) -> SplitResult | None:
    """The parts of a URL with a host; None for what is no such URL."""
    # urlsplit drops line breaks silently: what was checked would not be what is used.
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        return None
    try:
        url = urlsplit(value)
        return url if url.hostname and url.port != 0 else None
    except ValueError:  # a port out of range, an unclosed bracket
        return None


def exact_url(value: object) -> str:
    """The same to the last slash: what others compare with."""
    http_url(value)
    return str(value)


_HTTP = WithJsonSchema(Form(r"[Hh][Tt][Tt][Pp][Ss]?://.+", "a URL such as https://api.openai.com/v1").schema)
_GRPC = WithJsonSchema(Form(r"[Gg][Rr][Pp][Cc][Ss]?://.+", "grpc://HOST:PORT or grpcs://HOST:PORT").schema)
_INDEX = WithJsonSchema(
    Form(
        r"([Hh][Tt][Tt][Pp][Ss]?://[^@/]+(/.*)?|.+\.db)", "a URL such as http://127.0.0.1:19530, or a file *.db"
    ).schema
)
HttpUrl = Annotated[str, BeforeValidator(http_url), _HTTP]
ReceiverUrl = Annotated[str, BeforeValidator(receiver_url), _HTTP]
ExactUrl = Annotated[str, BeforeValidator(exact_url), _HTTP]
GrpcUrl = Annotated[str, BeforeValidator(grpc_url), _GRPC]
StoreUrl = Annotated[str, BeforeValidator(store_url)]
IndexUrl = Annotated[str, BeforeValidator(index_url), _INDEX]
