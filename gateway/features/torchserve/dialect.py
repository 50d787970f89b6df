"""TorchServe's inference API: predictions and explanations for arbitrary bytes or a form.

See https://pytorch.org/serve/inference_api.html.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import orjson
from multipart import parse_options_header

from gateway.calls import Call, Decisive, Outgoing
from gateway.dialects.forms import is_form, parse_form, write_form
from gateway.dialects.known import path_of
from gateway.dialects.unstreamed import Unstreamed
from gateway.outcomes import Bypass

STATUS = {"invalid_request_error": 400, "authentication_error": 401, "not_found_error": 404}


class TorchServe(Unstreamed):
    """`TorchServe` compares bodies byte for byte, because only the handler can interpret them.

    Forms are compared part by part, because the boundary differs in every request.
    """

    name = "torchserve"
    path = path_of("torchserve")

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        operation, model, version = self.claimed(path).groups()
        content_type = headers.get("content-type", "")
        kind = parse_options_header(content_type)[0]
        if is_form(content_type):
            parts = parse_form(body, content_type)
            content: object = parts
            decisive = [[p.name, p.filename, p.content_type, p.digest] for p in parts]
        else:
            content, decisive = body, [[kind, _digest(body)]]
        canonical = orjson.dumps([model, version, decisive])
        return Call(
            dialect=self,
            operation=operation,
            body={"content": content},
            model=model,
            stream=False,
            decisive_source=Decisive(canonical, canonical, None, Bypass.NO_TEXT),
            prompt_source=_text(body) if kind in ("text/plain", "application/json", "") else "",
            max_tokens=None,
            user=None,
        )

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        match = self.claimed(path)
        target = f"/{match[1]}/{model or match[2]}{match[3] or ''}"
        content = call.body["content"]
        if isinstance(content, bytes):
            return Outgoing(target, content)
        form, content_type = write_form(content)
        return Outgoing(target, form, (("Content-Type", content_type),))

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return orjson.dumps({"code": STATUS.get(kind, 503), "type": kind, "message": message})


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(body: bytes) -> str:
    """Return the text to judge complexity; empty if the bytes are not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return ""
