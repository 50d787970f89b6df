"""A small language model that learns answers, and says them through a real gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from aiohttp import web

from gateway.__main__ import main
from gateway.cache.threshold.wrong_hits import Label
from gateway.generation.asked import Sampling, asked_of
from gateway.tools.distillation.data import Row
from gateway.tools.distillation.evaluation import Answered, accepted_above, figures_of
from gateway.tools.distillation.judge import Judge, JudgeSilent
from tests.distill.conftest import BUILD_ENV
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.onnx_models import LEARNT, generator
from tests.fixtures.upstream import Upstream, completion, question_of

FLOORS = [
    (f"On which floor is room {n}?", f"Room {n} is on floor {n // 100}, by the lift.") for n in range(103, 915, 51)
]
PAIRS = [*LEARNT, *FLOORS]
SMALL = ("--layers", "2", "--width", "64", "--hidden", "128", "--context", "192", "--vocabulary", "512")


def lines(pairs: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in pairs)


@pytest.fixture(scope="module")
def written(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a version."""
    home = tmp_path_factory.mktemp("written")
    (home / "rows.jsonl").write_text(lines(PAIRS))
    (home / "held.jsonl").write_text(lines([(f"What floor is {n} on?", f"Room {n} is on floor {n // 100}, by the lift.")
                                            for n in range(211, 900, 97)]))  # fmt: skip
    where = ["--repository", home / "models", "--work", home / "work", "--build-env", BUILD_ENV]
    given = ["--task", "generate", "--name", "desk", "--held-out", home / "held.jsonl", "--epochs", "100", "--json"]
    assert main(["distill", str(home / "rows.jsonl"), *map(str, [*where, *given]), *SMALL]) == 0
    return home / "models" / "desk" / "1"


async def test_fifty_answers_are_learnt_by_heart_and_a_gateway_says_them(written: Path, tmp_path: Path) -> None:
    assert len(PAIRS) == 50
    backends = {"main": {"adapter": "onnx", "path": str(written), "task": "generate"}}
    async with gateway_of(config_of(tmp_path, backends), NO_CACHE) as served:
        for question, answer in PAIRS:
            said = await served.chat(question)
            assert said.json["choices"][0]["message"]["content"] == answer
            assert said.json["choices"][0]["finish_reason"] == "stop"


def test_what_was_held_out_is_reported_whatever_it_is(written: Path) -> None:
    report = json.loads((written / "report.json").read_text())
    assert report["by_heart"]["share"] == 1.0
    assert report["rows"] == 50
    assert report["checked"] == 8
    assert report["right"]["count"] + report["wrong"]["count"] <= report["right"]["of"] == 4
    assert report["perplexity"] > 1.0
    assert report["bytes"] < report["fp32_bytes"]
    assert len(report["samples"]) == 4
    assert "perplexity of the large model's answers" in (written / "report.md").read_text()


def test_what_an_answer_of_another_costs_is_what_it_cost_to_say_it() -> None:
    """In one pass over question and answer, against the steps that write it."""
    model = generator()
    for question, answer in LEARNT[:5]:
        body = {"messages": [{"role": "user", "content": question}], "logprobs": True}
        asked = asked_of(body, None, Sampling())
        pieces = [piece for piece in model.pieces(asked, onnxruntime.RunOptions()) if piece is not None]
        steps = [token.logprob for piece in pieces for token in piece.tokens]
        *told, end = model.likelihoods(asked, answer, onnxruntime.RunOptions())
        assert told == pytest.approx(steps, abs=1e-3)
        assert -0.1 < end <= 0.0
        assert sum(model.likelihoods(asked, answer[::-1], onnxruntime.RunOptions())) < sum(told) - 10


async def test_a_judge_is_asked_where_words_and_embeddings_cannot_tell(upstream: Upstream) -> None:
    async def same(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "SAME."))

    upstream.answer = same
    told = {"a": Label.WRONG, "b": Label.UNDECIDED}
    judge = Judge(upstream.url, "large", "sk-1", lambda _, text: told[text])
    row = Row("How much?", "Nothing at all.")
    assert await asyncio.to_thread(judge, row, "a") is Label.WRONG
    assert not upstream.calls
    assert await asyncio.to_thread(judge, row, "b") is Label.RIGHT
    (call,) = upstream.chats
    assert call.headers["Authorization"] == "Bearer sk-1"
    assert call.json["model"] == "large"
    assert all(text in question_of(call.json) for text in ("How much?", "Nothing at all.", "\nb\n"))

    async def failing(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=503)

    upstream.answer = failing
    with pytest.raises(JudgeSilent, match="answered with status 503, expected 200"):
        await asyncio.to_thread(judge, row, "b")


def test_figures_and_threshold_of_answers_by_hand() -> None:
    def one(confidence: float, says: Label, text: str = "a") -> Answered:
        return Answered(Row("q", "A "), text, confidence, says, 2.0, 4, 0.5)

    found = [one(0.9, Label.RIGHT), one(0.8, Label.RIGHT, "b"), one(0.5, Label.WRONG, "c"), one(0.4, Label.UNDECIDED)]
    assert accepted_above(found, 0.9) == pytest.approx(0.65)
    assert accepted_above(found, 0.0) == 0.0
    figures = figures_of(found, 6, 0.65)
    assert (figures.over, figures.too_long, figures.undecided) == (4, 2, 1)
    assert (figures.same.count, figures.right.count, figures.wrong.count) == (2, 2, 1)
    assert (figures.answered.count, figures.right_answered.share) == (2, 1.0)
    assert figures.perplexity == pytest.approx(np.exp(0.5), abs=1e-3)
    assert figures.p50_ms == 500.0


def test_what_does_not_fit_the_task_is_said_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(lines(PAIRS))
    for given, expected in (
        (["--task", "generate", "--large"], "--large is of classifiers"),
        (["--task", "generate", "--student", str(tmp_path)], "has no config.json"),
        (["--task", "generate", "--judge", "localhost"], "expected a URL that begins with http"),
        (["--tensorrt"], "expected --precision fp16 or fp32"),
        (["--teacher-frozen", "6"], "expected --teacher-epochs 0"),
        ([], "there is `--task generate`"),
    ):
        assert main(["distill", str(tmp_path / "rows.jsonl"), *given]) != 0
        assert expected in capsys.readouterr().err
