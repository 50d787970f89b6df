"""The forms of the museum: how a real server answers or a real client asks. README.md describes their files.

A fault of a file is a `FormError` that names the file, the key and what was expected.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.fixtures import bedrock

FORMS = Path(__file__).with_name("forms")
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
TRANSLATED = {"chat": "messages", "messages": "chat", "converse": "messages"}
FOR_SERVERS = {"converse": "chat"}  # dialects of servers alone -> that of the client whose way is `untranslated`
KEYS = {"name", "source", "dialect", "request", "response", "sent", "right", "stored", "except"}
RESPONSE_KEYS = {"status", "headers", "body", "events", "each", "raw", "end", "pieces", "framing", "encoding", "cut"}
REQUEST_KEYS = {"headers", "fields", "body", "encoding", "path", "framing", "stream"}
SENT_KEYS = {"body", "headers", "no_headers", "path"}
RIGHT_KEYS = {
    "text", "reasoning", "refusal", "tools", "finish", "usage", "error", "others", "vectors", "logprobs", "comments",
}  # fmt: skip
SWITCHES = ("official", "shared", "relayed")
EXCEPTION_KEYS = {"why", "right", "stored", "skip", "sent", *SWITCHES}
ENCODE = {"gzip": gzip.compress, "deflate": zlib.compress}


class FormError(ValueError):
    """A file of the museum that cannot be read."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of the server in bytes. `pieces` are written one by one; `streamed`: it is a stream of events."""

    status: int
    headers: tuple[tuple[str, str], ...]
    pieces: tuple[bytes, ...]
    streamed: bool
    framing: str  # chunked, length, or close
    cut: bool  # the connection breaks after the last piece
    content: bytes  # the pieces together, without content coding


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is right in one way."""

    right: Mapping[str, Any]
    stored: bool
    sent: Mapping[str, Any]
    skipped: str  # why the way does not exist for this form; empty: it does
    official: bool = True  # the official client can read what the client gets
    shared: bool = True  # clients that ask while the call runs get its answer
    relayed: bool = True  # in the server's dialect and form, the answer comes as it was sent


@dataclass(frozen=True, slots=True)
class Form:
    """One form. `streamed`: the form itself, or the request of a client's form, is a stream."""

    id: str
    name: str
    dialect: str
    request: Mapping[str, Any]
    asked: Mapping[str, Any]  # the body of the request as JSON, or the fields that are added to the default one
    reply: Reply | None  # None: the form is a client's, and the server gives a plain answer
    streamed: bool
    expected: Expectation
    exceptions: tuple[tuple[frozenset[str], Mapping[str, Any]], ...]

    def expectation(self, words: frozenset[str]) -> Expectation:
        """Return what is right in a way that has these words. Later exceptions win."""
        found = self.expected
        for wanted, change in self.exceptions:
            if wanted <= words:
                found = Expectation(
                    {**found.right, **change.get("right", {})},
                    change.get("stored", found.stored),
                    change.get("sent", found.sent),
                    change["why"] if change.get("skip") else found.skipped,
                    **{switch: change.get(switch, getattr(found, switch)) for switch in SWITCHES},
                )
        return found


def all_forms(names: Sequence[str] = ()) -> list[Form]:
    """Return the forms whose file name contains one of `names`; without names all of them."""
    files = sorted(FORMS.glob("**/*.yaml"))
    return [load(file) for file in files if not names or any(name in file.stem for name in names)]


def load(file: Path) -> Form:
    """Read one form. Raise `FormError`."""
    try:
        given = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)  # each process of a run reads all forms
        return _form(file.stem, given)
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise FormError(f"{file.name}: {error}") from error


def _form(stem: str, given: Mapping[str, Any]) -> Form:
    _check(given, KEYS, "the form")
    dialect = given["dialect"]
    if dialect not in PATHS.keys() | FOR_SERVERS.keys():
        raise FormError(f"dialect: {dialect!r}, expected one of {', '.join([*PATHS, *FOR_SERVERS])}")
    if not str(given["source"]).startswith("https://"):
        raise FormError("source: expected the address of a public thread or page")
    request, response, right = given.get("request", {}), given.get("response"), given.get("right", {})
    _check(request, REQUEST_KEYS, "request")
    _check(right, RIGHT_KEYS, "right")
    _check(given.get("sent", {}), SENT_KEYS, "sent")
    reply = None if response is None else _reply(dialect, response)
    body = request.get("body", request.get("fields", {}))
    asked = json.loads(body.removeprefix("\ufeff")) if isinstance(body, str) else body
    streamed = bool(asked.get("stream")) if reply is None else request.get("stream", reply.streamed)
    if reply is None and not right:
        right = PLAIN_VECTORS if dialect == "embeddings" else PLAIN
    expected = Expectation(right, bool(given["stored"]), given.get("sent", {}), "")
    exceptions = tuple(_exception(words, change) for words, change in given.get("except", {}).items())
    return Form(stem, given["name"], dialect, request, asked, reply, streamed, expected, exceptions)


# The plain answer of the server to a client's form.
PLAIN = {"text": "Fine, thanks.", "finish": "stop", "usage": {"input": 7, "output": 5}}
PLAIN_VECTORS = {"vectors": [[0.5, -0.25]], "usage": {"input": 7}}


def _exception(words: str, change: Mapping[str, Any]) -> tuple[frozenset[str], Mapping[str, Any]]:
    _check(change, EXCEPTION_KEYS, f"except.{words}")
    if not change.get("why"):
        raise FormError(f"except.{words}: expected a 'why'")
    _check(change.get("right", {}), RIGHT_KEYS, f"except.{words}.right")
    return frozenset(words.split()), change


def _check(given: Mapping[str, Any], known: set[str], where: str) -> None:
    if not isinstance(given, dict):
        raise FormError(f"{where}: expected a mapping")
    if unknown := given.keys() - known:
        raise FormError(f"{where}: unknown key {sorted(unknown)[0]!r}, expected {', '.join(sorted(known))}")


def _reply(dialect: str, given: Mapping[str, Any]) -> Reply:
    _check(given, RESPONSE_KEYS, "response")
    streamed = "body" not in given
    of_streams = bedrock.MEDIA_TYPE if dialect == "converse" else "text/event-stream"
    headers = {"Content-Type": of_streams if streamed else "application/json", **given.get("headers", {})}
    pieces = [piece.encode() for piece in given["pieces"]] if "pieces" in given else [_content(dialect, given)]
    if "pieces" in given:
        streamed = headers["Content-Type"].startswith("text/event-stream")
    content = b"".join(pieces)
    if encoding := given.get("encoding"):
        headers["Content-Encoding"] = encoding
        pieces = [ENCODE[encoding](content)]
    lines = tuple((name, str(value)) for name, value in headers.items() if value is not None)
    framing = given.get("framing", "chunked" if streamed else "length")
    return Reply(given.get("status", 200), lines, tuple(pieces), streamed, framing, bool(given.get("cut")), content)


def _content(dialect: str, given: Mapping[str, Any]) -> bytes:
    if "body" in given:
        body = given["body"]
        return body.encode() if isinstance(body, str) else compact(body).encode()
    if "raw" in given:
        end = given.get("end", "\n")
        return str(given["raw"]).replace("\n", end).encode()
    return b"".join(event_bytes(dialect, event, given.get("each", {})) for event in given["events"])


def event_bytes(dialect: str, event: Any, each: Mapping[str, Any]) -> bytes:
    """Return an event: a mapping is its data, to which `each` is added; a text is its data as it stands. Those of
    Converse are frames. An `exception` is one, with its `message`."""
    if dialect == "converse":
        fields = {key: value for key, value in event.items() if key not in ("type", "exception")}
        if "exception" in event:
            return bedrock.exception(event["exception"], **fields)
        return bedrock.event(event["type"], **fields)
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if dialect in ("messages", "responses") and "type" in event else ""
    return f"{name}data: {compact({**each, **event})}\n\n".encode()


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
