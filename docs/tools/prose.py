"""Check the language of the documentation and of the docstrings: `python -m docs.tools.prose [PATH ...]`.

Three rules hold for each sentence. It has at most 25 words. It does not begin with a noun clause such as "What is
sent". It has no word of the list below. A code span counts as one word, and so does a list of code spans.

The checker prints one line for each fault, as `file:line: fault: sentence`, and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "deploy/**/*.md")
MODULES = ("gateway/**/*.py", "gauntlet/*.py", "docs/tools/*.py")

MAX_WORDS = 25
OPENING = re.compile(
    r"[^\w\N{REPLACEMENT CHARACTER}]*(?:what|who|whom|whose|whoever|whatever|whichever|which|of|where|wherever)\b",
    re.IGNORECASE,
)
# Each word is archaic, private, or a false friend; the plain word stands beside it.
PLAIN_WORDS = {
    r"anew": "again",
    r"in (?:its|their|his|whose) stead": "instead",
    r"likewise": "also",
    r"whoever": "a client that",
    r"thereof|therein|thereby|whereby|wherein|whereof": "a second sentence",
    r"hitherto|heretofore": "so far",
    r"as ever": "as usual",
    r"beneath": "under or below",
    r"aught|naught|nought": "nothing",
    r"begotten|bidden|forthwith|withal": "a plain word",
    r"no sooner": "as soon as",
    r"lest": "so that ... not",
    r"the (?:asked|told|kept|held|sought|said|given)": "a noun: question, report, entry",
}
PLAIN = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): plain for word, plain in PLAIN_WORDS.items()}

_CODE = "\N{REPLACEMENT CHARACTER}"  # stands for a code span: one word
_CODES = re.compile(rf"{_CODE}(?:(?:,| and| or|, and|, or| /|,? to|:| =) *{_CODE})+")
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|vs|etc|cf|approx|no|p|sec)\.(?=\s)", re.IGNORECASE)
_END = re.compile(r"(?<=[.!?])[\"')\]*]*\s+(?=[\"'(\[*]*(?:[A-Z0-9]|" + _CODE + "))")


class Fault(NamedTuple):
    """One sentence that breaks a rule."""

    path: Path
    line: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        text = self.sentence.replace(_CODE, "`...`")
        return f"{self.path}:{self.line}: {self.rule}: {text[:90]}{'...' if len(text) > 90 else ''}"


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of one paragraph, in which code spans are replaced already."""
    text = _ABBREVIATIONS.sub(r"\1", " ".join(text.split()))
    yield from filter(None, _END.split(text))


def broken_rules(sentence: str) -> Iterator[str]:
    """Yield each rule that a sentence breaks, in words."""
    words = [word for word in _CODES.sub(_CODE, sentence).split() if re.search(rf"\w|{_CODE}", word)]
    if len(words) > MAX_WORDS:
        yield f"{len(words)} words, expected at most {MAX_WORDS}"
    if OPENING.match(sentence) and not sentence.rstrip("\"')").endswith("?"):
        yield f"begins with '{words[0]}', expected a subject"
    for pattern, plain in PLAIN.items():
        if found := pattern.search(sentence):
            yield f"'{found[0]}', expected {plain}"


def _text(inline: Token) -> str:
    """Return the text of a block, with a placeholder for each code span and without pictures."""
    parts = []
    for child in inline.children or ():
        match child.type:
            case "text":
                parts.append(child.content)
            case "code_inline":
                parts.append(_CODE)
            case "softbreak" | "hardbreak":
                parts.append(" ")
    return "".join(parts)


def markdown_faults(path: Path, source: str, first_line: int = 1) -> Iterator[Fault]:
    """Yield the faults of a Markdown text. `first_line` is its line in `path`."""
    line = first_line
    for token in MarkdownIt("commonmark").enable("table").parse(source):
        if token.map is not None:
            line = first_line + token.map[0]
        if token.type == "inline":
            for sentence in sentences(_text(token)):
                for rule in broken_rules(sentence):
                    yield Fault(path, line, rule, sentence)


def docstring_faults(path: Path, source: str) -> Iterator[Fault]:
    """Yield the faults of the docstrings of a Python module."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield from markdown_faults(path, _without_indent(text), statement.lineno)


def _without_indent(docstring: str) -> str:
    """Return a docstring as Markdown: no indent, so that nothing in it looks like a code block by chance."""
    first, _, rest = docstring.partition("\n")
    margins = [len(line) - len(line.lstrip()) for line in rest.splitlines() if line.strip()]
    margin = min(margins, default=0)
    return "\n".join([first.strip(), *(line[margin:] for line in rest.splitlines())])


def faults_of_file(path: Path) -> Iterator[Fault]:
    """Yield the faults of a file, by its suffix."""
    source = (ROOT / path).read_text()
    yield from docstring_faults(path, source) if path.suffix == ".py" else markdown_faults(path, source)


def checked_files(arguments: list[str]) -> list[Path]:
    """Return the files to check, relative to the root: those of the command line, or all."""
    if arguments:
        given = [Path(argument).resolve() for argument in arguments]
        found = [
            file
            for path in given
            for file in ([path] if path.is_file() else [*path.rglob("*.md"), *path.rglob("*.py")])
        ]
    else:
        found = [file for pattern in (*PAGES, *MODULES) for file in ROOT.glob(pattern)]
    return sorted({file.relative_to(ROOT) for file in found})


def main(arguments: list[str]) -> int:
    found = [fault for path in checked_files(arguments) for fault in faults_of_file(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
