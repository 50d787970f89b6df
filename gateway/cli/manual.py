"""Help as a manual has it: what a command does, its options, examples, exit codes, environment."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from textwrap import fill

from gateway.cli.pages import PAGES, Page

WIDTH = 78
EXIT_CODES = (
    (0, "good"),
    (1, "a fault was found, or the command could not do what it was asked"),
    (2, "wrong usage"),
    (130, "interrupted"),
)
ENVIRONMENT = (
    ("NEARHIT_SECTION__KEY", "goes before section.key of config.yaml, such as NEARHIT_SERVER__ADMIN=127.0.0.1:9999"),
    ("the variable of auth.admin_token_env, or of --token-env", "the admin port's token"),
    ("NO_COLOR", "no colours"),
)


def dress(parser: argparse.ArgumentParser) -> None:
    """Gives each parser of the tree its page."""
    for name, command in tree(parser):
        page = PAGES.get(name)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        if page is not None:
            command.description = "\n\n".join([command.description or "", *paragraphs(page.about)])
        command.epilog = "\n\n".join(f"{title}:\n{body}" for title, body in _sections(page))


def tree(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser and all below it, by what is written after `nearhit`."""
    yield name, parser
    # argparse has no public way to walk its own tree; shtab walks it by the same attribute.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from tree(inner, f"{name} {word}".strip())


def paragraphs(text: str) -> list[str]:
    return [fill(part, WIDTH) for part in text.split("\n\n")]


def exit_codes(page: Page | None) -> Iterator[tuple[str, str]]:
    for code, text in EXIT_CODES:
        yield str(code), page.fault if code == 1 and page is not None and page.fault else text


def _sections(page: Page | None) -> Iterator[tuple[str, str]]:
    if page is not None:
        yield "examples", "\n".join(f"  {example}" for example in page.examples)
    yield "exit codes", "\n".join(f"  {code:<5}{text}" for code, text in exit_codes(page))
    yield "environment", "\n".join(f"  {name}\n      {text}" for name, text in ENVIRONMENT)
