"""A labelled pair of questions."""

from __future__ import annotations

from typing import NamedTuple


class Pair(NamedTuple):
    asked: str
    stored: str
    same: bool
    kind: str  # how it was made: for the figures by kind
    group: str  # what must not be split between fitting and calibration
