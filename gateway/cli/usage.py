"""What a command line gets to hear that is not understood."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from gateway.config.errors import closest

ANYWHERE = ("-h", "--help", "--version")  # options that stand before a command


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know itself: argparse leaves that to the outermost parser, whose usage says nothing of
    the options that were meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"{_unknown(rest[0], self._options())} `{self.prog} --help` lists what there is")
        return known, rest

    def _options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings if option.startswith("--")]

    def refuse_command(self, given: Sequence[str], known: Sequence[str]) -> None:
        """Ends the process where the first word is neither one of the commands nor an option of this parser."""
        word = given[0] if given else ANYWHERE[0]
        if word.startswith("-") and word not in ANYWHERE:
            self.error(f"options go after the command, and {word} stands before it")
        if not word.startswith("-") and word not in known:
            meant = closest(word, known)
            hint = f", did you mean {meant!r}?" if meant else ";"
            self.error(f"there is no command {word!r}{hint} `{self.prog} --help` lists them")


def _unknown(word: str, known: Sequence[str]) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {word!r};"
    option = word.partition("=")[0]
    meant = closest(option, known)
    return f"unknown option {option}" + (f", did you mean {meant}?" if meant else ";")
