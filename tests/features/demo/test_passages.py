"""Documentation becomes titled passages: bounded, in order, with the headings that they take for granted."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.features.demo.passages import MAX_CHARACTERS, read_passages, split_passages

DOCUMENT = """# Guide

Intro with a [link](https://example.org/x) and **bold** words. See e.g. the second part. It has 0.5 parts.

## Setting up

1. Clone the repository,
   all of it.
2. Run `make setup` in it.

```bash
# not a heading
make run
```

### Deep down

| key | meaning of the key |
|-----|--------------------|
| ttl | how long it is kept |

## Next

Another section follows here.
"""


def test_a_passage_is_titled_with_its_heading_path() -> None:
    assert [p.title for p in split_passages(DOCUMENT, "guide.md")] == [
        "Guide", "Guide > Setting up", "Guide > Setting up > Deep down", "Guide > Next",
    ]  # fmt: skip


def test_sentences_are_units_and_abbreviations_do_not_end_them() -> None:
    assert split_passages(DOCUMENT, "guide.md")[0].units == (
        "Intro with a link and bold words.",
        "See e.g. the second part.",
        "It has 0.5 parts.",
    )


def test_list_items_and_code_blocks_are_units() -> None:
    """An item keeps its continuation lines; in a code block a comment is no heading."""
    assert split_passages(DOCUMENT, "guide.md")[1].units == (
        "Clone the repository, all of it.",
        "Run `make setup` in it.",
        "```\n# not a heading\nmake run\n```",
    )


def test_table_rows_are_units_without_their_rule() -> None:
    assert split_passages(DOCUMENT, "guide.md")[2].units == ("key | meaning of the key", "ttl | how long it is kept")


def test_a_passage_that_would_be_too_long_is_split() -> None:
    long = "# T\n\n" + " ".join(f"Sentence number {i} says something." for i in range(60))
    passages = split_passages(long, "t.md")
    assert len(passages) > 1
    assert all(sum(map(len, p.units)) <= MAX_CHARACTERS for p in passages)
    assert [unit for p in passages for unit in p.units][-1] == "Sentence number 59 says something."


@given(st.text(alphabet="#`~-*|.\n aB1", max_size=400))
def test_any_text_is_cut_into_bounded_passages(text: str) -> None:
    """The documentation is written by people: nothing in it may stop the demo from starting."""
    for passage in split_passages(text, "any.md"):
        assert passage.units
        assert sum(map(len, passage.units)) <= MAX_CHARACTERS


def test_the_corpus_is_readme_architecture_and_docs_without_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/sub/a.md", "docs/CHANGELOG.md", "other.md"):
        (tmp_path / name).write_text(f"# {name}\n\nSome text long enough to count.\n")
    assert [p.source for p in read_passages(tmp_path)] == ["README.md", "ARCHITECTURE.md", "docs/sub/a.md"]


def test_the_shipped_concepts_give_every_section_a_passage() -> None:
    titles = {p.title for p in read_passages(Path(__file__).parents[3])}
    assert {"Concepts > Verdict", "Concepts > Scope", "Concepts > Admission", "Concepts > Coalescing"} <= titles
