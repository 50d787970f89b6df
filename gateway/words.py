"""The words of a text, by the rules that its readers share. Pure.

Some readers have words of their own notation: "C++" in an exact part, "-x" in an answer. Such a rule stands beside its
notation.
"""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W\d_]+)*")
"""A word of letters and digits, with the endings behind its apostrophes: "don't", "15th". Underscores part words."""

ASCII_WORD = re.compile(r"[A-Za-z0-9]++(?:'[A-Za-z]++)*+")
"""The same words in an ASCII text, in half of the time."""

LETTERS = re.compile(r"[^\W\d_]+")
"""A run of letters."""

RUN = re.compile(r"\w+")
"""A run of letters, digits and underscores."""
