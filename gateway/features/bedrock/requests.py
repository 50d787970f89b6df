"""Translate a messages request of Anthropic into a request of Converse. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.dialects.json_body import dump_json
from gateway.dialects.translation.limits import Fitting, Limits, object_schema
from gateway.errors import BadRequest

PROTOCOL = "Bedrock's Converse"
# Bedrock accepts more in the ids of calls, and no more in names. It has no id of an end user.
LIMITS = Limits(tool_name=64, call_id=64, user=256, plain_ids=True, opaque_user=False)
# Fields of Converse that clients may send beside those of their own protocol. They go upstream as they are.
OWN_FIELDS = (
    "guardrailConfig", "performanceConfig", "requestMetadata", "additionalModelResponseFieldPaths", "promptVariables",
    "additionalModelRequestFields", "serviceTier",
)  # fmt: skip
INFERENCE = {
    "max_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop_sequences": "stopSequences",
}
IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}
CLAUDE = "anthropic."  # in the id of a model, and in the ARN of its inference profile
CACHING = re.compile(r"anthropic\.|amazon\.nova")  # families that cache prompts where it is marked
EMPTY = "(empty)"  # the text of a tool's result without any: Bedrock refuses none, and white space alone
_ODD_IN_NAME = re.compile(r"[^A-Za-z0-9\-()\[\] ]+|\s{2,}")  # of a document: Bedrock fears instructions in it
MAX_NAME = 200  # characters


def converse_request(body: Mapping[str, Any], model: str, fit: Fitting, *, marks: bool) -> dict[str, Any]:
    """Return the request. Raise `BadRequest` for what Converse cannot express; `KeyError`, `TypeError` and the like for
    a malformed body. With `marks` the model caches prompts whatever its name is."""
    writer = _Writer(fit, marks=marks or CACHING.search(model) is not None)
    turns = writer.turns(body["messages"])
    if "cache_control" in body and turns:
        turns[-1]["content"] += writer.mark(body)
    more = _model_fields(body, is_claude=CLAUDE in model)
    request = {key: body[key] for key in OWN_FIELDS if body.get(key) is not None}
    if more or "additionalModelRequestFields" in request:
        request["additionalModelRequestFields"] = {**more, **request.get("additionalModelRequestFields", {})}
    parts = {
        "system": writer.system(body.get("system")),
        "inferenceConfig": _inference(body),
        "toolConfig": writer.tools(body, turns),
        "outputConfig": _output(body.get("output_config") or {}),
    }
    return {**request, **{key: value for key, value in parts.items() if value}, "messages": turns}


def _inference(body: Mapping[str, Any]) -> dict[str, Any]:
    return {theirs: body[ours] for ours, theirs in INFERENCE.items() if body.get(ours) is not None}


def _model_fields(body: Mapping[str, Any], *, is_claude: bool) -> dict[str, Any]:
    """Return the fields that Converse passes to the model as they are. Other models than Claude have other names."""
    if not is_claude:
        return {}
    fields = {key: body[key] for key in ("thinking", "top_k") if body.get(key) is not None}
    choice = body.get("tool_choice") or {}
    if choice.get("disable_parallel_tool_use") and choice.get("type") in ("auto", "any", "tool"):
        fields["tool_choice"] = choice
    return fields


def _output(config: Mapping[str, Any]) -> dict[str, Any]:
    output: dict[str, Any] = {"effort": config["effort"]} if config.get("effort") else {}
    if (form := config.get("format")) is not None:
        schema = {"schema": dump_json(form["schema"]).decode(), "name": "answer"}
        output["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    return output


class _Writer:
    """Writes the blocks of one request."""

    def __init__(self, fit: Fitting, *, marks: bool) -> None:
        self._fit = fit
        self._marks = marks
        self._documents: set[str] = set()  # names, which must differ

    def mark(self, marked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the block that ends the prefix to cache, if there is a mark."""
        mark = marked.get("cache_control")
        if not self._marks or not isinstance(mark, Mapping):
            return []
        return [{"cachePoint": {"type": "default", **({"ttl": "1h"} if mark.get("ttl") == "1h" else {})}}]

    def system(self, system: Any) -> list[dict[str, Any]]:
        return [
            block
            for part in _parts(system)
            if part["text"].strip()
            for block in ({"text": part["text"]}, *self.mark(part))
        ]

    def turns(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Merge consecutive messages of one side into one turn, since Bedrock wants them in turns.

        Results of tools come first, and calls of tools last: Bedrock looks for results where the next turn begins.
        """
        turns: list[tuple[str, list[list[dict[str, Any]]]]] = []
        for message in messages:
            groups = [group for part in _parts(message["content"]) if (group := self._group(part))]
            if turns and turns[-1][0] == message["role"]:
                turns[-1][1].extend(groups)
            elif groups:
                turns.append((message["role"], groups))
        return [
            {"role": role, "content": [block for group in sorted(groups, key=_rank) for block in group]}
            for role, groups in turns
        ]

    def _group(self, part: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the block of a part with its mark; nothing for a text that Bedrock would refuse."""
        block = self._block(part)
        return [] if block is None else [block, *self.mark(part)]

    def _block(self, part: Mapping[str, Any]) -> dict[str, Any] | None:
        kind = part["type"]
        if kind == "text":
            return {"text": part["text"]} if part["text"].strip() else None
        if kind == "image":
            return {"image": _image(part["source"])}
        if kind == "document":
            return {"document": self._document(part)}
        if kind == "tool_use":
            call = {"toolUseId": self._call_id(part["id"]), "name": self._fit.name(part["name"])}
            return {"toolUse": {**call, "input": part.get("input") or {}}}
        if kind == "tool_result":
            return {"toolResult": self._result(part)}
        if kind == "thinking":
            text = {"text": part["thinking"], "signature": part["signature"]}
            return {"reasoningContent": {"reasoningText": text}}
        if kind == "redacted_thinking":
            return {"reasoningContent": {"redactedContent": part["data"]}}
        if kind == "search_result":
            return {"searchResult": _search_result(part)}
        raise untranslatable(f"a block of the type {str(kind)[:40]!r}", "messages")

    def _call_id(self, given: Any) -> Any:
        """Return the id of a call, which some servers leave empty."""
        return self._fit.call_id(given) or "call"

    def _result(self, part: Mapping[str, Any]) -> dict[str, Any]:
        content = [block for each in _parts(part.get("content")) if (block := self._block(each)) is not None]
        status = {"status": "error"} if part.get("is_error") else {}
        identity = self._call_id(part["tool_use_id"])
        return {"toolUseId": identity, "content": content or [{"text": EMPTY}], **status}

    def _document(self, part: Mapping[str, Any]) -> dict[str, Any]:
        source, kind = part["source"], part["source"]["type"]
        if kind == "base64":
            form, given = DOCUMENTS.get(source["media_type"]), {"bytes": source["data"]}
        elif kind == "text":
            form, given = "txt", {"bytes": b64encode(source["data"].encode()).decode()}
        elif kind == "content":
            form, given = "txt", {"content": [{"text": each["text"]} for each in _parts(source["content"])]}
        else:
            form = None
        if form is None:
            kinds = ", ".join(DOCUMENTS.values())
            raise untranslatable(f"a document of this kind (expected one in the request, of {kinds})", "messages")
        cited = (part.get("citations") or {}).get("enabled")
        more = {"citations": {"enabled": True}} if cited else {}
        context = {"context": part["context"]} if part.get("context") else {}
        return {"format": form, "name": self._name(part.get("title")), "source": given, **context, **more}

    def _name(self, title: Any) -> str:
        plain = _ODD_IN_NAME.sub(" ", title if isinstance(title, str) else "").strip() or "document"
        name, number = plain[:MAX_NAME], 1
        while name in self._documents:
            number += 1
            name = f"{plain[: MAX_NAME - 8]} ({number})"
        self._documents.add(name)
        return name

    def tools(self, body: Mapping[str, Any], turns: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the tools. Bedrock wants those that earlier turns have called, even if this one may call none."""
        given, choice = body.get("tools") or (), (body.get("tool_choice") or {}).get("type")
        called = {block["toolUse"]["name"]: None for turn in turns for block in turn["content"] if "toolUse" in block}
        if choice == "none" and not called:
            return {}
        if choice == "none" and given:
            raise untranslatable("tool_choice 'none' after calls of tools", "tool_choice")
        tools = [block for tool in given for block in (self._tool(tool), *self.mark(tool))]
        if not tools:
            tools = [{"toolSpec": {"name": name, "inputSchema": {"json": {"type": "object"}}}} for name in called]
        if not tools:
            return {}
        if choice == "tool":
            return {"tools": tools, "toolChoice": {"tool": {"name": self._fit.name(body["tool_choice"]["name"])}}}
        return {"tools": tools} | ({"toolChoice": {choice: {}}} if choice in ("auto", "any") else {})

    def _tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        if tool.get("type", "custom") != "custom":
            raise untranslatable(f"a tool of the type {str(tool['type'])[:40]!r}", "tools")
        description = tool.get("description") or ""
        spec = {"name": self._fit.name(tool["name"]), **({"description": description} if description.strip() else {})}
        strict = {"strict": True} if tool.get("strict") else {}
        return {"toolSpec": {**spec, "inputSchema": {"json": object_schema(tool.get("input_schema") or {})}, **strict}}


def _rank(group: Sequence[Mapping[str, Any]]) -> int:
    return -1 if "toolResult" in group[0] else int("toolUse" in group[0])


def _parts(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    else:
        yield from content or ()


def _image(source: Mapping[str, Any]) -> dict[str, Any]:
    form = IMAGES.get(source["media_type"]) if source["type"] == "base64" else None
    if form is None:
        kinds = ", ".join(dict.fromkeys(IMAGES.values()))
        raise untranslatable(f"an image of this kind (expected one in the request, of {kinds})", "messages")
    return {"format": form, "source": {"bytes": source["data"]}}


def _search_result(part: Mapping[str, Any]) -> dict[str, Any]:
    content = [{"text": each["text"]} for each in part["content"]]
    cited = {"citations": {"enabled": True}} if (part.get("citations") or {}).get("enabled") else {}
    return {"source": part["source"], "title": part["title"], "content": content, **cited}


def untranslatable(what: str, param: str) -> BadRequest:
    return BadRequest(f"{what} cannot be translated to {PROTOCOL}, which the backend speaks", param=param)
