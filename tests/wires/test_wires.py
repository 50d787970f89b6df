"""Each form of the museum comes through every way as it should. `python -m tests.wires` prints the table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.wires.__main__ import failures
from tests.wires.forms import Form, FormError, all_forms, load
from tests.wires.museum import Museum, merged, open_museum

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def museum(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Museum]:
    async with open_museum(tmp_path_factory.mktemp("wires")) as opened:
        yield opened


@pytest.mark.parametrize("form", all_forms(), ids=lambda form: form.id)
async def test_the_form_comes_through_every_way(museum: Museum, form: Form) -> None:
    assert failures(form, merged(await museum.visits(form))) == []


WRONG = """
name: A server says something else, in an answer that is cut off at its length.
source: https://platform.openai.com/docs/api-reference/chat
dialect: chat
response:
  body:
    id: w
    choices: [{index: 0, message: {role: assistant, content: No.}, finish_reason: length}]
right: {text: Yes., finish: length, usage: {input: 3}}
stored: true
"""


async def test_what_is_not_right_is_a_failure_in_every_way_that_shows_it(museum: Museum, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)
    form = load(file)
    assert [line.partition(" / ")[::2] for line in failures(form, merged(await museum.visits(form)))][:2] == [
        ("wrong: text 'No.', expected 'Yes.'", "every way"),
        ("wrong: usage None, expected {'input': 3}", "every way"),
    ]
    again = {visit.way for visit in await museum.visits(form) if "is not stored" in " ".join(visit.faults)}
    assert again == {"again", "again other"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nsource: https://x\ndialect: chat\nstored: true\nwrong: 1\n", "unknown key 'wrong'"),
        ("name: x\nsource: here\ndialect: chat\nstored: true\n", "source: expected the address"),
        ("name: x\nsource: https://x\ndialect: talk\nstored: true\n", "dialect: 'talk', expected one of chat"),
        ("name: x\nsource: https://x\ndialect: chat\nstored: true\nexcept: {own: {stored: no}}\n", "expected a 'why'"),
    ],
)
async def test_a_fault_of_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "form.yaml"
    file.write_text(text)
    with pytest.raises(FormError, match=r"form\.yaml.*" + said):
        load(file)
