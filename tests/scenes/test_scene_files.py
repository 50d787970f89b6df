"""The runner of scenes: a faulty file is named with its line, and a scene that does not hold fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.gateways import Answer
from tests.scenes.scene import Faulty, Step, read
from tests.scenes.test_scenes import differences, is_verdict

HEAD = "policy: {routes: []}\nscenes:\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "some.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- 1\n", "some.yaml:1: expected config, policy and scenes"),
        ("scenes: []\n", "some.yaml:1: policy: Field required"),
        (
            f"{HEAD}  - claim: a\n    requests:\n      - ask: hi\n        statis: 1\n",
            "some.yaml:6: .*statis: unknown key",
        ),
        (f"{HEAD}  - claim: a\n    requests: []\n  - requests: []\n", "some.yaml:5: scenes.1.claim: Field required"),
        (f"{HEAD}  - claim: a\n    requests:\n      - status: 200\n", "some.yaml:5: .*expected one of ask, path, tog"),
        (f"{HEAD}  - claim: a\n    requests: [{{advance: soon}}]\n", "some.yaml:4: .*advance"),
        (f"{HEAD}  - claim: a\n   requests: []\n", "some.yaml: .*line 4"),
    ],
)
def test_a_fault_of_a_scene_file_is_named_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(Faulty, match=f"(?s){fault}"):
        list(read(written(tmp_path, text)))


def test_a_scene_is_played_once_for_each_case(tmp_path: Path) -> None:
    text = f"{HEAD}  - claim: a\n    cases: [{{x: 1}}, {{x: 2}}]\n    requests: [{{ask: of $x, fields: {{n: $x}}}}]\n"
    first, second = read(written(tmp_path, text))
    assert [each.scene.requests[0].ask for each in (first, second)] == ["of 1", "of 2"]
    assert second.scene.requests[0].fields == {"n": 2}
    assert (second.line, second.lines) == (3, [5])


@pytest.mark.parametrize(
    ("expected", "header", "holds"),
    [
        ("fwd=miss; stored", "nearhit; fwd=miss; stored", True),
        ("fwd=miss", "nearhit; fwd=miss; stored", False),
        ("hit; detail=exact", "nearhit; hit; detail=exact; ttl=9", True),
        ("hit; detail=exact; ttl=8", "nearhit; hit; detail=exact; ttl=9", False),
        ("hit", "nearhit; hit; detail=semantic; ttl=9", True),
        ("not hit", "nearhit; hit; detail=exact", False),
        ("not hit", "nearhit; fwd=bypass", True),
        ("not hit", None, False),
    ],
)
def test_a_verdict_is_compared_whole(expected: str, header: str | None, holds: bool) -> None:
    assert is_verdict(expected, header) is holds


@pytest.mark.parametrize(
    "expected",
    [
        {"status": 404},
        {"cache": "hit"},
        {"answer": "other"},
        {"json": {"choices": [{"message": {"content": "other"}}]}},
        {"json": {"choices": []}},
        {"json": {"absent": 1}},
        {"has": ["other"]},
        {"lacks": ["text"]},
        {"answer_headers": {"x-a": "2"}},
        {"answer_headers": {"x-a": None}},
        {"same_as": 1},
        {"unchanged": True},
    ],
    ids=str,
)
def test_every_expectation_can_fail(expected: dict[str, object]) -> None:
    headers = {"Content-Type": "application/json", "Cache-Status": "nearhit; fwd=miss", "X-A": "1"}
    answer = Answer(200, headers, b'{"choices": [{"message": {"content": "text"}}]}')
    before = Answer(200, {}, b"before")
    good = {"cache": "fwd=miss", "answer": "text", "has": ["text"], "answer_headers": {"x-a": "1", "x-b": None}}
    assert not list(differences(Step.model_validate({"ask": "hi", **good}), answer, [before]))
    assert len(list(differences(Step.model_validate({"ask": "hi", **expected}), answer, [before]))) == 1
