"""The load tests of deploy/loadtest: their mix of requests, and each installed tool for a moment before a gateway."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.loadtest import KNOWN, TOOLS, program
from deploy.loadtest.mix import DOCUMENT_WORDS, LONG, OTHER_WORDS, Mix, Prompt, read_wordings

ROOT = Path(__file__).parents[2]
SECONDS = 2
WORDINGS = read_wordings()


def drawn(count: int, seed: int = 1) -> list[Prompt]:
    mix, draw = Mix(WORDINGS), random.Random(seed)
    return [mix.draw(draw) for _ in range(count)]


def test_a_tenth_of_the_prompts_are_long() -> None:
    prompts = drawn(5000)
    long = [prompt for prompt in prompts if prompt.long]
    assert len(long) / len(prompts) == pytest.approx(LONG, abs=0.02)
    assert all(len(prompt.text.split()) > DOCUMENT_WORDS for prompt in long)
    assert max(len(prompt.text.split()) for prompt in prompts if not prompt.long) < 50


def test_questions_come_by_a_zipf_law_and_half_of_them_in_other_words() -> None:
    numbers = {text: number for number, texts in enumerate(WORDINGS) for text in texts}
    asked = [prompt.text for prompt in drawn(20_000) if not prompt.long]
    counted = Counter(numbers[text] for text in asked).most_common()
    assert counted[0][1] / counted[9][1] == pytest.approx(10, rel=0.3)
    others = sum(text != WORDINGS[numbers[text]][0] for text in asked)
    assert others / len(asked) == pytest.approx(OTHER_WORDS, abs=0.02)


def test_mix_writes_a_line_of_json_for_each_request() -> None:
    command = [sys.executable, ROOT / "deploy" / "loadtest" / "mix.py", "--requests", "50", "--key", "text"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == [prompt.text for prompt in drawn(50, seed=0)]


@pytest.mark.parametrize("tool", KNOWN)
def test_a_tool_gets_whole_answers_and_hits(tool: str, tmp_path: Path) -> None:
    if program(tool, TOOLS) is None:
        pytest.skip(f"{tool} is not installed: `make loadtest LOADTEST_TOOLS={tool}` does it")
    said, questions = tmp_path / "figures.json", tmp_path / "questions.jsonl"
    # With one question, two requests suffice for a hit, however few a busy machine sends.
    questions.write_text(json.dumps({"same": ["How do I boil an egg?", "How is an egg boiled?"]}) + "\n")
    given = ["--only", tool, "--seconds", str(SECONDS), "--questions", questions, "--json", said]
    command = [sys.executable, "-m", "bench.loadtest", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (row,) = json.loads(said.read_text())
    assert row["figures"]["failures"] == 0
    assert row["figures"]["requests"] > 0 and row["figures"]["per_second"] > 0
    assert 0 < row["figures"]["p50_ms"] <= row["figures"]["p99_ms"]
    assert row["shares"]["miss"] > 0
    assert sum(share for verdict, share in row["shares"].items() if verdict != "miss") > 0
