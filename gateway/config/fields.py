"""Scalars that several sections of the configuration use. Each parser raises `ValueError` with the whole sentence."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.config.errors import KeyPath, format_value
from gateway.config.schema_types import FileForm, ScalarForm, any_of
from gateway.config.store_url import parse_store_url
from gateway.config.validation import Problem, Section


def http_url(value: object, example: str = "https://api.openai.com/v1", extra: str = "api_key_env") -> str:
    """Return an endpoint's base URL, without a slash at its end.

    Credentials in a URL would reach logs. So the function refuses them and does not repeat them; they belong in the key
    `extra`.
    """
    expected = f"expected a URL such as {example}"
    url = _split_url(value)
    if url is not None and "@" in url.netloc:
        raise ValueError(f"the URL contains credentials, which would reach logs, {expected} and the key {extra}")
    if url is not None and "api-version=" in url.query:
        raise ValueError(f"the URL has an api-version, {expected} and the key api_version")
    if url is None or url.scheme not in ("http", "https") or url.query or url.fragment:
        raise ValueError(f"{expected}, got {format_value(value)}")
    return url.geturl().rstrip("/")


def receiver_url(value: object) -> str:
    """Return the base URL of an OTLP receiver, without a slash at its end."""
    return http_url(value, "http://127.0.0.1:4318", "headers_env")


def grpc_url(value: object) -> str:
    """Return the address of a Triton server, without a slash at its end."""
    url = _split_url(value)
    if url is not None and url.scheme in ("grpc", "grpcs") and url.port and "@" not in url.netloc:
        rest = url.path.strip("/") or url.query or url.fragment
        if not rest:
            return url.geturl().rstrip("/")
    raise ValueError(f"expected grpc://HOST:PORT or grpcs://HOST:PORT, got {format_value(value)}")


def store_url(value: object) -> str:
    """Return `embedded`, or the address of an outside store."""
    parse_store_url(value)
    return str(value)


def milvus_lite_path(url: str) -> bool:
    """Return whether the URL of an index is a Milvus Lite file, not a server."""
    return url.endswith(".db") and "://" not in url


def index_url(value: object) -> str:
    """Return the URL of a Milvus server, or the name of a Milvus Lite file."""
    if isinstance(value, str) and value.isprintable() and milvus_lite_path(value):
        return value
    return http_url(value, "http://127.0.0.1:19530 or a file such as milvus.db", "token_env")


def _split_url(value: object) -> SplitResult | None:
    """Return the parts of a URL with a host, or None for anything else."""
    # urlsplit drops line breaks silently, so the checked URL would differ from the one in use.
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        return None
    try:
        url = urlsplit(value)
        return url if url.hostname and url.port != 0 else None
    except ValueError:  # a port out of range, an unclosed bracket
        return None


def exact_url(value: object) -> str:
    """Return a URL unchanged, to the last slash, because others compare it."""
    http_url(value)
    return str(value)


_HTTP = WithJsonSchema(ScalarForm(r"[Hh][Tt][Tt][Pp][Ss]?://.+", "a URL such as https://api.openai.com/v1").schema)

_GRPC = WithJsonSchema(ScalarForm(r"[Gg][Rr][Pp][Cc][Ss]?://.+", "grpc://HOST:PORT or grpcs://HOST:PORT").schema)

_INDEX = WithJsonSchema(
    ScalarForm(
        r"([Hh][Tt][Tt][Pp][Ss]?://[^@/]+(/.*)?|.+\.db)", "a URL such as http://127.0.0.1:19530, or a file *.db"
    ).schema
)

HttpUrl = Annotated[str, BeforeValidator(http_url), _HTTP]

ReceiverUrl = Annotated[str, BeforeValidator(receiver_url), _HTTP]

ExactUrl = Annotated[str, BeforeValidator(exact_url), _HTTP]

GrpcUrl = Annotated[str, BeforeValidator(grpc_url), _GRPC]

StoreUrl = Annotated[str, BeforeValidator(store_url)]

IndexUrl = Annotated[str, BeforeValidator(index_url), _INDEX]

_NAME = ScalarForm(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a name of letters, digits, '.', '_' and '-', at most 64")

_ENVIRONMENT_NAME = ScalarForm(
    r"[A-Za-z_][A-Za-z0-9_]{0,127}",
    "the name of an environment variable such as OPENAI_API_KEY, not the secret itself",
)

_HEADER_NAME = ScalarForm(r"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,64}", "the name of a header such as accept-language")

_DEVICE = ScalarForm(r"cpu|cuda(:\d{1,2})?", "cpu, cuda or cuda:N")

_KEY_HASH = ScalarForm(r"[0-9a-fA-F]{64}", "the SHA-256 of an API key as 64 hex digits (printf %s KEY | sha256sum)")


def parse_name(value: object) -> str:
    """Return a name that is safe in a log, a label, a header and a key."""
    if isinstance(value, bool | int | float):
        raise ValueError(f"expected {_NAME.expected}, got {format_value(value)}; put it in quotes")
    return _NAME.read(value)[0]


def parse_header_name(value: object) -> str:
    """Return the name of a header, in lower case."""
    return _HEADER_NAME.read(value)[0].lower()


def parse_folder(value: object) -> Path:
    """Return the path of a folder. It is printable: a NUL would only fail at its first use."""
    return _path(value, "a folder")


def parse_file(value: object) -> Path:
    """Return the path of a file. It is printable: a NUL would only fail at its first use."""
    return _path(value, "a file")


def _path(value: object, kind: str) -> Path:
    if isinstance(value, Path):
        return value
    if isinstance(value, str) and value and value.isprintable():
        return Path(value)
    raise ValueError(f"expected the path of {kind}, got {format_value(value)}")


def parse_command(value: object) -> tuple[str, ...]:
    """Return the arguments of a command; a text is split as a shell splits words. Do not repeat a wrong value: a secret
    may be in it."""
    try:
        arguments = shlex.split(value) if isinstance(value, str) else value
    except ValueError:  # a quotation mark without its other half
        arguments = None
    if isinstance(arguments, list | tuple) and 0 < len(arguments) <= MAX_ARGUMENTS:
        texts = [each for each in arguments if isinstance(each, str) and "\0" not in each]
        if len(texts) == len(arguments) and texts[0]:
            return tuple(texts)
    raise ValueError("expected a command such as [gcloud, auth, print-access-token], each argument a text")


def parse_environment_name(value: object) -> str:
    """Return the name of an environment variable. Do not repeat a wrong value: it may be the secret itself."""
    if match := _ENVIRONMENT_NAME.match(value):
        return match[0]
    raise ValueError(f"expected {_ENVIRONMENT_NAME.expected}")


def optional_section(section: type[Section], example: str) -> Callable[[object], object]:
    """Return a parser for `off` (None), `on` (the section with its defaults) or a mapping.

    YAML 1.1 reads bare `on` and `off` as booleans; in quotes they stay text.
    """

    def parse(value: object) -> object:
        if value is None or value is False or value == "off":
            return None
        if value is True or value == "on":
            return section()
        if isinstance(value, dict | section):
            return value
        raise ValueError(f"expected off, on or {example}, got {format_value(value)}")

    return parse


def triton_problems(settings: Mapping[str, Any], keys: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of a section whose `adapter` may be `triton`, which needs a `url`; `keys` need `triton`."""
    if settings.get("adapter") == "triton":
        if settings.get("url") is None:
            yield Problem(None, "'url' is required, e.g. url: grpc://127.0.0.1:8001")
        return
    for key in keys:
        if settings.get(key) is not None:
            yield Problem(key, f"works with adapter: triton only, expected that adapter or no {key}")


def parse_device(value: object) -> str:
    """Return the device that searches an index."""
    return _DEVICE.read(value)[0]


def parse_key_hash(value: object) -> str:
    """Return the digest of an API key, in lower case. Do not repeat a wrong value: it may be the key itself."""
    if match := _KEY_HASH.match(value):
        return match[0].lower()
    raise ValueError(f"expected {_KEY_HASH.expected}")


def parse_version(value: object) -> int:
    """Return the version of the file format, which is 1."""
    if isinstance(value, int) and not isinstance(value, bool) and value == 1:
        return 1
    raise ValueError(f"expected 1, the only version, got {format_value(value)}")


MAX_ARGUMENTS = 64  # of a command

Command = Annotated[
    tuple[str, ...],
    BeforeValidator(parse_command),
    WithJsonSchema(
        any_of(
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_ARGUMENTS},
        )
    ),
    FileForm(list),
]
"""The arguments of a command, which runs without a shell."""

IndexDevice = Annotated[str, BeforeValidator(parse_device), WithJsonSchema(_DEVICE.schema)]

Name = Annotated[str, BeforeValidator(parse_name), WithJsonSchema(_NAME.schema)]

HeaderName = Annotated[str, BeforeValidator(parse_header_name), WithJsonSchema(_HEADER_NAME.schema)]

Folder = Annotated[Path, BeforeValidator(parse_folder, json_schema_input_type=str)]

File = Annotated[Path, BeforeValidator(parse_file, json_schema_input_type=str)]

EnvironmentName = Annotated[str, BeforeValidator(parse_environment_name), WithJsonSchema(_ENVIRONMENT_NAME.schema)]

KeyHash = Annotated[str, BeforeValidator(parse_key_hash), WithJsonSchema(_KEY_HASH.schema)]

Version = Annotated[int, BeforeValidator(parse_version), WithJsonSchema({"const": 1})]

Text = Annotated[str, Field(min_length=1, max_length=512)]


def _check_webhook(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("expected a URL such as https://hooks.example/alerts")
    return url


WebhookUrl = Annotated[Text, AfterValidator(_check_webhook), Field(examples=["https://hooks.example/alerts"])]


class TlsFiles(Section):
    """Files for TLS to a server."""

    ca: File | None = None
    """PEM file with the only authorities to trust. Without it the gateway trusts those of the machine."""
    certificate: File | None = None
    """PEM file with the client certificate, for servers that ask for one."""
    key: File | None = None
    """PEM file with the private key of `certificate`, without a password."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        for key, other in (("certificate", "key"), ("key", "certificate")):
            if settings.get(key) is not None and settings.get(other) is None:
                yield Problem(key, f"needs {other}, expected both or neither")


class SourcedSection(Section):
    """A section whose values may come from variables and files."""

    def secrets(self) -> Iterator[tuple[KeyPath, str | None]]:
        """Yield each key that names the environment variable of a secret, with that variable."""
        return iter(())

    def resolved(self, folder: Path) -> Self:
        """Return the section with its paths resolved against the folder of the file."""
        return self

    def faults(self, folder: Path) -> Iterator[tuple[KeyPath, str]]:
        """Yield each key whose files are not fit for use, with the sentence. `folder` is that of the file."""
        return iter(())
