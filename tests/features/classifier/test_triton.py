"""A classifier on a real Triton: a score or the name of a tier, and every failure means the gateway's own score."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.features.classifier.question import ClassifierFailed
from gateway.features.classifier.triton import text_model
from tests.fixtures.gateways import Served
from tests.fixtures.kserve_triton import KServeTriton
from tests.fixtures.several import behind, counted, policy_of

PATIENT = "5s"


@asynccontextmanager
async def classified(tmp_path: Path, url: str, model: str) -> AsyncIterator[Served]:
    complexity = f"{{adapter: triton, url: '{url}', model: {model}, timeout: {PATIENT}}}"
    policy = policy_of(f"light: light, large: large, complexity: {complexity}")
    async with behind(tmp_path, policy, "light", "large") as (served, _):
        yield served


async def asked(served: Served, question: str) -> tuple[str, str]:
    answer = await served.chat(question)
    assert answer.status == 200, answer.body
    return answer.headers["x-nearhit-backend"], answer.headers["x-nearhit-complexity"]


async def test_its_score_chooses_the_tier(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    async with classified(tmp_path, kserve_triton.grpc_url, "difficulty_score") as served:
        assert await asked(served, "0.83") == ("large", "0.83")
        assert await asked(served, "0.17") == ("light", "0.17")
        assert counted(served, "classifier_requests") == {"answered": 2}


async def test_its_label_chooses_the_tier(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    async with classified(tmp_path, kserve_triton.grpc_url, "difficulty_tier") as served:
        assert await asked(served, "large") == ("large", "0.75")
        assert await asked(served, "light") == ("light", "0.25")
        assert counted(served, "classifier_requests") == {"answered": 2}


@pytest.mark.parametrize(
    ("model", "question", "outcome"),
    [
        ("difficulty_score", "1.5", "invalid"),
        ("difficulty_score", "nan", "invalid"),
        ("difficulty_score", "no number", "failed"),
        ("difficulty_tier", "huge", "invalid"),
        ("absent", "0.9", "failed"),
        ("sum_rows", "0.9", "failed"),
    ],
)
async def test_a_bad_answer_means_the_own_score(
    kserve_triton: KServeTriton, tmp_path: Path, model: str, question: str, outcome: str
) -> None:
    async with classified(tmp_path, kserve_triton.grpc_url, model) as served:
        own = served.gateway.parts.space.complexity.judge(question, None, None).score
        assert (await asked(served, question))[1] == f"{own:.2f}"
        assert counted(served, "classifier_requests") == {outcome: 1}


Tensors = Sequence[Mapping[str, Any]]
TEXT: Tensors = [{"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]}]


def outputs(**datatypes: str) -> Tensors:
    return [{"name": name, "datatype": datatype, "shape": ["-1", "1"]} for name, datatype in datatypes.items()]


@pytest.mark.parametrize(
    ("given", "name", "scores"),
    [
        (outputs(anything="FP32"), "anything", True),
        (outputs(anything="BYTES"), "anything", False),
        (outputs(tokens="INT64", anything="FP64"), "anything", True),
        (outputs(tier="BYTES", score="FP32"), "score", True),
        (outputs(confidence="FP32", text_output="BYTES"), "text_output", False),
    ],
)
def test_the_output_of_a_model_is_found(given: Tensors, name: str, scores: bool) -> None:
    found = text_model(TEXT, given)
    assert (found.input, found.shape, found.output, found.scores) == ("text", (1, 1), name, scores)


@pytest.mark.parametrize(
    ("inputs", "given", "reason"),
    [
        ([*TEXT, *TEXT], outputs(score="FP32"), "2 inputs"),
        ([{"name": "ids", "datatype": "INT64", "shape": ["-1"]}], outputs(score="FP32"), "type BYTES"),
        ([{"name": "text", "datatype": "BYTES", "shape": ["2"]}], outputs(score="FP32"), "fixed size"),
        (TEXT, outputs(score="INT64"), "no clear output"),
        (TEXT, outputs(a="FP32", b="FP32"), "no clear output"),
    ],
)
def test_a_model_that_does_not_classify_one_text_is_named(inputs: Tensors, given: Tensors, reason: str) -> None:
    with pytest.raises(ClassifierFailed, match=reason):
        text_model(inputs, given)
