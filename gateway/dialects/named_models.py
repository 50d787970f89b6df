"""Read the models that a request names on a path that no dialect claims: in its target, or in a JSON body or a form.

Such requests are for pictures, speech, reranking, moderation, and whatever else a backend offers. They pass through
unparsed, but a policy may match on their model, and an API key may be for some models only. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from urllib.parse import parse_qsl, unquote

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from gateway.config.schema import MAX_BODY_KEYS
from gateway.dialects.json_body import BOM, check_keys, parse_numbers, read_object
from gateway.errors import BadRequest
from gateway.messages import media_type

FIELD = "model"
MAX_NAME = 512  # bytes of a model's name in a form
MAX_FIELDS = 10_000  # of a form; a request for a batch of pictures has some twenty
_IN_QUERY = (FIELD, "deployment")  # the second one is of Azure's realtime API
_MAY_NAME = re.compile("|".join(("%", *_IN_QUERY)))  # an escape may hide a name
# Paths that name a model: Azure's deployments, Google's models, OpenAI's former engines, Bedrock's models. Azure's
# servers do not tell small letters from capitals there.
_IN_PATH = re.compile(
    r"/(?i:deployments|engines)/([^/]+)(?=/)|/(?i:models?)/([^/]+?)(?::(?:[a-z]+[A-Z][A-Za-z]*|predict))?(?=/|$)"
)
_BLANKS = b" \t\r\n"
# Segments of paths to what belongs to an account, of OpenAI, Anthropic, Azure, Google and Mistral.
RESOURCES = frozenset(
    {
        "agents", "assistants", "batches", "batch", "cachedcontents", "containers", "conversations", "corpora", "evals",
        "files", "fine-tunes", "fine-tuning", "fine_tuning", "jobs", "libraries", "organization", "organizations",
        "projects", "skills", "threads", "tunedmodels", "uploads", "upload", "vector_stores", "workspaces",
    }
)  # fmt: skip
_MANAGES = re.compile(
    r"/api/(?:delete|pull|push|copy|create|blobs/.*)"  # of Ollama
    r"|/v1/(?:responses|chat/completions|videos)/(?!compact$|input_tokens$).*"
)


class BodyKind(Enum):
    """How a body names its model."""

    JSON = auto()
    FORM = auto()  # application/x-www-form-urlencoded
    MULTIPART = auto()
    OTHER = auto()  # it names none


def content_type_of(headers: Mapping[str, str]) -> str:
    """Return the type of a body. Raise `BadRequest` if it is stated twice: servers differ in which one counts."""
    stated = None
    for name, value in headers.items():
        if name.lower() == "content-type":
            if stated is not None:
                raise BadRequest("the header Content-Type occurs twice: expected it once")
            stated = value
    return stated or ""


def kind_of(content_type: str, start: bytes) -> BodyKind:
    """Return the kind of a body by its type and its first bytes. An empty body is `OTHER`.

    Some servers read JSON whatever the type says, so a body that begins as an object counts as one.
    """
    media = media_type(content_type)
    text = _without_blanks(start)
    if not text or media in ("application/x-ndjson", "application/jsonl", "application/x-jsonlines"):
        return BodyKind.OTHER
    if media == "multipart/form-data":
        return BodyKind.MULTIPART
    if media == "application/json" or media.endswith("+json") or text.startswith(b"{"):
        return BodyKind.JSON
    return BodyKind.FORM if media == "application/x-www-form-urlencoded" else BodyKind.OTHER


def model_in_body(body: bytes, content_type: str, max_keys: int = MAX_BODY_KEYS) -> str | None:
    """Return the model that a whole body names, or None if it names none.

    Raise `BadRequest` if two readers could find two models in it, and `PayloadTooLarge` beyond `max_keys`.
    """
    kind = kind_of(content_type, body)
    if kind is BodyKind.JSON:
        return _model_in_json(body, content_type, max_keys)
    if kind is BodyKind.FORM:
        return _only(value for name, value in _pairs(body.decode("utf-8", "replace")) if name == FIELD)
    if kind is BodyKind.OTHER:
        return None
    form = MultipartModel(content_type)
    form.feed(body)
    form.feed(b"")
    return form.model or None


def models_named(method: str, path: str, query: str, in_body: str | None) -> tuple[str, ...]:
    """Return the models that a request without a dialect names, the deciding one first. Raise `BadRequest` if its
    query names two.

    The body decides before the query, and a path that names a model before both. `path` is in its normal form.
    """
    found = _IN_PATH.findall(path) if method == "POST" else []
    may_name = _MAY_NAME.search(query)
    if not found and not may_name:
        return (in_body,) if in_body else ()
    in_path = [unquote(deployment or model) for deployment, model in found]
    pairs = _pairs(query) if may_name else []
    in_query = (_only(value for name, value in pairs if name == field) for field in _IN_QUERY)
    return tuple(dict.fromkeys(name for name in (*in_path, in_body, *in_query) if name))


def uses_only_named(method: str, path: str) -> bool:
    """Return whether a request without a dialect uses the models that it names, and nothing else.

    Files, batches, threads and the like belong to the account of the backend, and may be of any model. A field `model`
    beside them says nothing, and nor does one of a request that changes or removes something.
    """
    segments = {segment.lower() for segment in unquote(path).split("/")}
    return method in ("GET", "POST") and RESOURCES.isdisjoint(segments) and not _MANAGES.fullmatch(path)


class MultipartModel:
    """Reads the field `model` of a form as it arrives, and keeps none of the rest.

    Servers differ in which of two fields of one name counts. So the whole form has to be read, even if the first one
    is known: a second one raises `BadRequest`.
    """

    def __init__(self, content_type: str) -> None:
        """Raise `BadRequest` if the boundary is missing or stated twice."""
        boundary = parse_options_header(content_type)[1].get("boundary")
        if not boundary or content_type.lower().count("boundary=") != 1:
            raise BadRequest("the Content-Type is invalid: expected multipart/form-data with one boundary")
        try:
            # Filenames come in any encoding, and only the names of fields are read.
            self._parser = PushMultipartParser(boundary, max_segment_count=MAX_FIELDS, header_charset="latin-1")
        except MultipartError as error:
            raise _malformed(error) from None
        self._value: bytearray | None = None  # of the field that is being read, if it is the model
        self.model: str | None = None
        self.is_over = False  # the form has ended

    @property
    def is_known(self) -> bool:
        return self.model is not None or self.is_over

    def feed(self, data: bytes) -> None:
        """Read the next piece; an empty one is the end. Raise `BadRequest`."""
        try:
            for event in self._parser.parse(data):
                self._read(event)
        except MultipartError as error:
            raise _malformed(error) from None
        self.is_over = self.is_over or not data

    def _read(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        if isinstance(event, MultipartSegment):
            if event.name == FIELD:
                if self.model is not None:
                    raise _named_twice()
                self._value = bytearray()
        elif self._value is None:
            return
        elif event is None:
            self.model, self._value = self._value.decode("utf-8", "replace"), None
        else:
            self._value += event
            if len(self._value) > MAX_NAME:
                raise BadRequest(f"the field 'model' is invalid: expected at most {MAX_NAME} bytes", param=FIELD)


class ModelReader:
    """Finds out, as a body arrives, which model it names, or that all of it has to be read for that."""

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type
        self._start = b""
        self._form: MultipartModel | None = None
        self.kind: BodyKind | None = None  # None: nothing but blanks has come

    @property
    def is_known(self) -> bool:
        return self.kind is not None and (self._form is None or self._form.is_known)

    @property
    def needs_whole(self) -> bool:
        return self.kind is BodyKind.JSON or self.kind is BodyKind.FORM

    @property
    def model(self) -> str | None:
        return None if self._form is None else self._form.model or None

    def feed(self, data: bytes) -> None:
        """Read the next piece; an empty one is the end. Raise `BadRequest`."""
        if self.kind is None:
            self._start += data
            if data and not _without_blanks(self._start):
                return
            self.kind, data, self._start = kind_of(self._content_type, self._start), self._start, b""
            if self.kind is BodyKind.MULTIPART:
                self._form = MultipartModel(self._content_type)
        if self._form is not None:
            self._form.feed(data)


def _model_in_json(body: bytes, content_type: str, max_keys: int) -> str | None:
    check_keys(body, max_keys)
    try:
        fields, _ = read_object(body)
    except BadRequest:
        if _without_blanks(body).startswith(b"["):
            return None  # a batch, as of an older protocol: no model is named for all of it
        try:
            fields = parse_numbers(body)
        except BadRequest:
            if "json" in content_type.lower():
                raise
            return None  # other bytes that begin with a brace
    session = fields.get("session")  # of OpenAI's realtime API
    value = fields.get(FIELD, session.get(FIELD) if isinstance(session, dict) else None)
    return value if isinstance(value, str) and value else None


def _without_blanks(start: bytes) -> bytes:
    return start.removeprefix(BOM).lstrip(_BLANKS)


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise BadRequest(f"too many fields: expected at most {MAX_FIELDS}") from None


def _only(values: Iterable[str]) -> str | None:
    names = list(dict.fromkeys(values))
    if len(names) > 1:
        raise _named_twice()
    return names[0] if names and names[0] else None


def _named_twice() -> BadRequest:
    return BadRequest("the field 'model' occurs twice: expected it once", param=FIELD)


def _malformed(error: MultipartError) -> BadRequest:
    return BadRequest(f"the multipart form is malformed: {error}")
