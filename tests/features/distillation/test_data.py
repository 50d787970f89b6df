"""What may be learnt from, and how a threshold is chosen: pure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gateway.__main__ import main
from gateway.features.distillation.data import DataInvalid, TrainingRow, check_classes, read_data, split
from gateway.features.distillation.report import threshold


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_csv_jsonl_and_both_forms_of_an_export_are_rows(tmp_path: Path) -> None:
    table = written(tmp_path / "a.csv", "text,category", '"Where, please?",lost', "How much?,price")
    assert read_data(table).rows == (TrainingRow("Where, please?", "lost"), TrainingRow("How much?", "price"))
    lines = written(
        tmp_path / "a.jsonl",
        '{"text": "one", "label": "a", "probabilities": {"a": 0.9, "b": 0.1}}',
        '{"fingerprint": "0f", "question": "two", "answer": "b"}',
        '{"fingerprint": "0f", "question": null, "answer": "b"}',
        '{"messages": [{"role": "user", "content": "three"}, {"role": "assistant", "content": "a"}]}',
    )
    found = read_data(lines)
    assert found.rows == (
        TrainingRow("one", "a", {"a": 0.9, "b": 0.1}),
        TrainingRow("two", "b"),
        TrainingRow("three", "a"),
    )
    assert found.skipped == 1


def test_every_fault_is_said_with_its_line(tmp_path: Path) -> None:
    lines = written(
        tmp_path / "a.jsonl", "{", '{"text": "x"}', '["x"]', '{"text": "x", "label": "a", "probabilities": {"a": -1}}'
    )
    with pytest.raises(DataInvalid) as fault:
        read_data(lines)
    first, second, third, fourth = str(fault.value).splitlines()
    assert first.startswith(f"{lines}:1: not JSON (")
    assert second == f"{lines}:2: no label, expected a text under one of label, answer, category, intent"
    assert third == f"{lines}:3: expected a JSON object"
    assert fourth == f"{lines}:4: a probability is invalid, expected a number of 0 or more"


def test_a_table_without_a_label_is_a_fault_of_its_first_line(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, match=r"a\.csv:1: no column of the label"):
        read_data(written(tmp_path / "a.csv", "text,other", "x,y"))


def test_answers_that_were_written_are_no_classes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label", *(f"question {n},answer {n}" for n in range(30)))
    with pytest.raises(DataInvalid, match="look like written answers, expected labels that come again, 1000 at most"):
        check_classes(read_data(path), path)


def test_what_does_not_fit_is_said_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "a.csv", "text,label", *(f"question {n},answer {n}" for n in range(30)))
    for given, expected in (
        (["--tensorrt"], "expected --precision fp16 or fp32"),
        (["--teacher-frozen", "6"], "use --teacher-epochs 0"),
        ([], "look like written answers"),
    ):
        assert main(["distill", str(path), *given]) != 0
        assert expected in capsys.readouterr().err


def test_the_same_texts_lie_on_one_side_in_every_run() -> None:
    rows = [TrainingRow(f"text {n % 50}", "a") for n in range(100)]
    learnt, held = split(rows, 0.3, seed=1)
    assert (learnt, held) == split(rows, 0.3, seed=1)
    assert not {row.text for row in learnt} & {row.text for row in held}
    assert held and learnt


def test_the_threshold_is_the_lowest_that_keeps_the_agreement() -> None:
    confidence = np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32)
    agrees = np.array([True, True, False, True, False])
    assert threshold(confidence, agrees, 0.75) == pytest.approx(0.55)  # 3 of 4
    assert threshold(confidence, agrees, 0.9) == pytest.approx(0.75)  # 2 of 2
    assert threshold(confidence, agrees, 0.5) == 0.0
    assert threshold(confidence, ~agrees & False, 0.5) < 1.0  # nobody is surer than that
