"""Splits Markdown documentation into titled passages, and passages into the units of an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# About 70 tokens; the encoder reads 256. The vector of a longer passage is less specific. The light model answered 27
# of the 30 questions in tests/features/demo/questions.yaml with 300 characters, 23 with 450 and 24 with 600. The large
# model answered all 30 each time.
MAX_CHARACTERS = 300
MIN_UNIT_CHARACTERS = 12  # shorter ones ("See also:") answer nothing
EXCLUDED = frozenset({"CHANGELOG.md"})  # describes the past, not the present

HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
FENCE = re.compile(r"\s*(```|~~~)")
ITEM = re.compile(r"\s*([-*+]|\d+\.)\s+")
TABLE_RULE = re.compile(r"\s*\|?[\s:|-]+\|?\s*$")
# A full stop ends a sentence where a capital, a quote or code follows; "e.g. this" and "0.5" do not.
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+(?=[A-Z\"'`(])")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
EMPHASIS = re.compile(r"(\*\*|__)(.+?)\1")


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph, list, table or code block under its headings."""

    title: str  # heading path, "Concepts > Scope"
    source: str  # path of the file, relative to the documentation root
    units: tuple[str, ...]  # sentences, list items or code blocks, in order

    @property
    def text(self) -> str:
        """The text to embed. It begins with the headings, because they give the context of the paragraph."""
        return f"{self.title}: {' '.join(self.units)}"


@dataclass(slots=True)
class _Block:
    title: str
    kind: str  # paragraph | list | code
    lines: list[str] = field(default_factory=list)


def read_passages(doc_root: Path) -> list[Passage]:
    """Return the passages of README.md, ARCHITECTURE.md and docs/**/*.md under `doc_root`, in a stable order."""
    passages = []
    for file in documentation_files(doc_root):
        passages += split_passages(file.read_text(encoding="utf-8"), file.relative_to(doc_root).as_posix())
    return passages


def documentation_files(doc_root: Path) -> list[Path]:
    top = [doc_root / name for name in ("README.md", "ARCHITECTURE.md")]
    below = sorted((doc_root / "docs").rglob("*.md"))
    return [file for file in (*top, *below) if file.is_file() and file.name not in EXCLUDED]


def split_passages(markdown: str, source: str) -> list[Passage]:
    """Return the passages of one document. Adjacent passages of one section are joined up to `MAX_CHARACTERS`."""
    passages: list[Passage] = []
    for block in _blocks(markdown.splitlines()):
        for units in _merge_units(_units(block)):
            last = passages[-1] if passages else None
            if last and last.title == block.title and _length(last.units) + _length(units) <= MAX_CHARACTERS:
                passages[-1] = Passage(last.title, source, last.units + units)
            else:
                passages.append(Passage(block.title, source, units))
    return passages


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """Yield the blocks between headings, blank lines and fences. Blank lines between its items do not split a list."""
    path: list[tuple[int, str]] = []
    block = _Block("", "paragraph")
    fence: str | None = None
    for line in lines:
        mark = FENCE.match(line)
        if fence is not None:
            if mark and mark[1] == fence:
                yield block
                block, fence = _Block(block.title, "paragraph"), None
            else:
                block.lines.append(line)
            continue
        heading = HEADING.match(line)
        if heading or mark or not line.strip() or (ITEM.match(line) and block.kind != "list"):
            yield block
            if heading:
                level = len(heading[1])
                path = [(depth, text) for depth, text in path if depth < level] + [(level, plain_text(heading[2]))]
            fence = mark[1] if mark else None
            kind = "code" if mark else "list" if ITEM.match(line) else "paragraph"
            block = _Block(" > ".join(text for _, text in path), kind)
        if not (heading or mark or TABLE_RULE.match(line)):
            block.lines.append(line)
    yield block


def _units(block: _Block) -> tuple[str, ...]:
    if block.kind == "code":
        code = "\n".join(block.lines).strip("\n")
        return (f"```\n{code}\n```",) if code.strip() else ()
    if block.kind == "list":
        items: list[str] = []
        for line in block.lines:
            if ITEM.match(line) or not items:
                items.append(ITEM.sub("", line, count=1).strip())
            else:
                items[-1] += " " + line.strip()
        return _is_substantial(items)
    if any(line.lstrip().startswith("|") for line in block.lines):
        return _is_substantial([" | ".join(_cells(line)) for line in block.lines])
    return _is_substantial(SENTENCE_END.split(" ".join(line.strip() for line in block.lines)))


def _is_substantial(units: list[str]) -> tuple[str, ...]:
    return tuple(text for text in map(plain_text, units) if len(text) >= MIN_UNIT_CHARACTERS)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def _merge_units(units: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield groups of at most `MAX_CHARACTERS`. A unit that is longer than that is cut."""
    group: tuple[str, ...] = ()
    for unit in (unit[:MAX_CHARACTERS] for unit in units):
        if group and _length(group) + len(unit) > MAX_CHARACTERS:
            yield group
            group = ()
        group += (unit,)
    if group:
        yield group


def _length(units: tuple[str, ...]) -> int:
    return sum(map(len, units))


def plain_text(text: str) -> str:
    """Return the text without links, bold marks and surplus blanks. Backquotes stay, because they mark literal text."""
    return " ".join(EMPHASIS.sub(r"\2", LINK.sub(r"\1", text)).split())
