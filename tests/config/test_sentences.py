"""Every fault has its sentence, at its line: one faulty file each, the sentence pinned in `testdata/SENTENCES.txt`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from gateway.config.load import read_config
from gateway.config.policy.check import check

TESTDATA = Path(__file__).parent / "testdata"
FILES = sorted(path.name for path in TESTDATA.glob("*.yaml"))


def pinned() -> dict[str, list[str]]:
    sentences = defaultdict(list)
    for line in (TESTDATA / "SENTENCES.txt").read_text().splitlines():
        sentences[line.partition(":")[0]].append(line)
    return sentences


@pytest.mark.parametrize("name", FILES)
def test_a_faulty_file_gets_exactly_its_sentences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTDATA)
    if name.startswith("config-"):
        faults = read_config(Path(name), {}).faults
    else:
        faults = check([Path(name)], Path("good/config.yaml"), {}).faults
    assert [str(fault) for fault in faults] == pinned()[name]


def test_every_pinned_sentence_belongs_to_a_file() -> None:
    assert sorted(pinned()) == FILES


def test_no_sentence_repeats_a_secret() -> None:
    assert "secret@" not in (TESTDATA / "SENTENCES.txt").read_text()
    assert "sk-" not in (TESTDATA / "SENTENCES.txt").read_text()
