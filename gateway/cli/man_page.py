"""A manual page for man(1), made from the parser: groff_man(7)'s macros, of which every formatter knows these."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gateway.cli.manual import ENVIRONMENT, exit_codes, tree
from gateway.cli.pages import PAGES


def man_page(parser: argparse.ArgumentParser, version: str) -> str:
    """Of all commands. `version`: of nearhit."""
    return "\n".join(_page(parser, version)) + "\n"


def _page(parser: argparse.ArgumentParser, version: str) -> Iterator[str]:
    yield f'.TH NEARHIT 1 "" "nearhit {_text(version)}" "User Commands"'
    yield ".SH NAME"
    yield f"nearhit \\- {_text(parser.description or '').rstrip('.').lower()}"
    yield ".SH SYNOPSIS"
    yield ".B nearhit\n.I COMMAND\n[\\fIOPTION\\fR]..."
    yield ".SH COMMANDS"
    for name, command in tree(parser):
        if name in PAGES:
            yield from _command(name, command)
    yield ".SH EXIT STATUS"
    for code, text in exit_codes(None):
        yield f".TP\n.B {code}\n{_text(text)}"
    yield ".SH ENVIRONMENT"
    for variable, text in ENVIRONMENT:
        yield f".TP\n.B {_text(variable)}\n{_text(text)}"


def _command(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    page = PAGES[name]
    yield f".SS nearhit {_text(name)}"
    for i, paragraph in enumerate((command.description or "").split("\n\n")):
        yield ("" if i == 0 else ".PP\n") + _text(" ".join(paragraph.split()))
    for action in command._actions:
        if action.dest != "help":
            yield f".TP\n{_named(action)}\n{_text(_help(action, command))}"
    for example in page.examples:
        yield f".PP\n.EX\n    {_text(example)}\n.EE"
    if page.fault:
        yield f".PP\nExit status 1: {_text(page.fault)}."


def _named(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None and action.metavar is None:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return f"\\fI{_text(value)}\\fR"
    options = ", ".join(f"\\fB{_text(option)}\\fR" for option in action.option_strings)
    return options if action.nargs == 0 else f"{options} \\fI{_text(value)}\\fR"


def _help(action: argparse.Action, command: argparse.ArgumentParser) -> str:
    return command._get_formatter()._expand_help(action) if action.help else ""


def _text(text: str) -> str:
    """Signs that roff would take for commands, and hyphens that are to be copied as such."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{plain}" if plain.startswith(".") else plain
