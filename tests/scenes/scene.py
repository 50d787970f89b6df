"""Scenes as data: a policy, the script of the upstream, requests, and what must come of them.

A file has one configuration and several scenes. README.md describes every key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gateway.config.units import parse_duration

HERE = Path(__file__).parent
Seconds = Annotated[float, BeforeValidator(parse_duration)]


class Faulty(Exception):
    """A scene file is wrong. The message begins with the file and the line."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Reply(_Part):
    """An answer of the upstream. Without `text`, `json` and `body` it repeats the question, as `Upstream` does."""

    status: int = 200
    headers: dict[str, str] = {}
    text: str | None = None  # `{Name}` stands for a header of the call
    message: dict[str, Any] = {}
    finish: str | None = "stop"
    json_: Any = Field(None, alias="json")
    body: str | None = None
    events: list[Any] | None = None  # of a stream: the data of each, as JSON or as a text
    cut: bool = False  # the stream breaks in the middle
    done: bool = True  # the stream ends with [DONE]
    drop: bool = False  # the connection closes without an answer


class Sent(_Part):
    """A call as the upstream saw it. Headers with null must be absent; `json` is a part of the body."""

    method: str | None = None
    path: str | None = None
    headers: dict[str, str | None] = {}
    lacks: list[str] = []  # texts that are in no part of the call
    json_: Any = Field(None, alias="json")


class Step(_Part):
    """One request and what must come of it, a group of requests at the same time, or time that passes."""

    ask: str | None = None
    fields: dict[str, Any] = {}
    stream: bool = False
    path: str | None = None
    method: str = "POST"
    body: Any = None
    raw: str | None = None
    headers: dict[str, str] | list[tuple[str, str]] = {}
    times: int = 1
    together: list[Step] | None = None
    advance: Seconds | None = None

    status: int = 200
    cache: str | None = None
    answer: str | None = None
    json_: Any = Field(None, alias="json")
    has: list[str] = []
    lacks: list[str] = []
    answer_headers: dict[str, str | None] = {}
    unchanged: bool = False  # the body is the one that the upstream sent last
    same_as: int | None = None  # number of an earlier request of the scene, from 1
    calls: int | None = None  # of all upstreams, since the scene began
    backend: str | None = None  # the upstream of the last call

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.ask, self.path, self.together, self.advance).count(None) == 4:
            raise ValueError("expected one of ask, path, together, advance")
        return self


ALL = "*"  # all upstreams
Script = Annotated[
    dict[str, list[Reply]], BeforeValidator(lambda given: {ALL: given} if isinstance(given, list) else given)
]


class Scene(_Part):
    claim: str
    why: str = ""
    cases: list[dict[str, Any]] = [{}]
    policy: dict[str, Any] | None = None
    fresh: bool = False
    upstream: Script = {}
    requests: list[Step]
    sent: list[Sent] | None = None
    metrics: dict[str, dict[str, float]] = {}
    stored: int | None = None


class SceneFile(_Part):
    config: dict[str, Any] = {}
    policy: dict[str, Any]
    scenes: list[Scene]


class Located(NamedTuple):
    """A scene with one of its cases filled in, and its place."""

    file: str
    line: int
    lines: list[int]
    """of the requests"""
    scene: Scene
    house: Mapping[str, Any]
    """`config` and `policy` of the file"""
    takes_time: bool
    """whether a scene of the file lets time pass"""

    @property
    def id(self) -> str:
        return f"{self.file}:{self.line} {self.scene.claim}"


def read(path: Path) -> Iterator[Located]:
    """Yield the scenes of a file, one for each case. Raise `Faulty`."""
    try:
        node, document = yaml.compose(text := path.read_text(), yaml.CSafeLoader), yaml.load(text, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise Faulty(f"{path.name}: {error}") from None
    if not isinstance(document, dict):
        raise Faulty(f"{path.name}:1: expected config, policy and scenes")
    scenes = enumerate(document.get("scenes") or [])
    cases = [(i, filled(scene, case)) for i, scene in scenes for case in _cases_of(scene)]
    try:
        whole = SceneFile.model_validate({**document, "scenes": [scene for _, scene in cases]})
    except ValidationError as error:
        raise Faulty("\n".join(_faults(path, node, [i for i, _ in cases], error))) from None
    takes_time = any(step.advance is not None for scene in whole.scenes for step in scene.requests)
    house = {"config": whole.config, "policy": whole.policy}
    for (i, _), scene in zip(cases, whole.scenes, strict=True):
        at = _at(node, ("scenes", i))
        lines = [_line(_at(at, ("requests", j))) for j in range(len(scene.requests))]
        yield Located(path.name, _line(at), lines, scene, house, takes_time)


def _cases_of(scene: Any) -> list[dict[str, Any]]:
    return (scene.get("cases") if isinstance(scene, dict) else None) or [{}]


def filled(value: Any, case: Mapping[str, Any]) -> Any:
    """Return `value` with `$name` replaced by that value of the case; `$name` as a whole text may be any value."""
    if isinstance(value, str):
        if value[:1] == "$" and value[1:] in case:
            return case[value[1:]]
        for name, each in case.items():
            value = value.replace(f"${name}", str(each))
        return value
    if isinstance(value, dict):
        return {key: each if key == "cases" else filled(each, case) for key, each in value.items()}
    return [filled(each, case) for each in value] if isinstance(value, list) else value


def _faults(path: Path, node: yaml.Node, numbers: list[int], error: ValidationError) -> Iterator[str]:
    for fault in error.errors():
        place = list(fault["loc"])
        if place[:1] == ["scenes"] and len(place) > 1:
            place[1] = numbers[int(place[1])]
        text = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"].removeprefix("Value error, ")
        yield f"{path.name}:{_line(_at(node, tuple(place)))}: {'.'.join(map(str, place))}: {text}"


def _at(node: yaml.Node, place: tuple[Any, ...]) -> yaml.Node:
    """Return the node at a place, or the last one on the way to it."""
    for key in place:
        if isinstance(node, yaml.MappingNode):
            found = next((child for name, child in node.value if name.value == key), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            found = node.value[key]
        else:
            found = None
        node = node if found is None else found
    return node


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
