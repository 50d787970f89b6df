"""Late interaction: how well the tokens of two texts find each other, from the encoder's own token vectors.

No second forward pass: the graph that makes the sentence's vector yields the tokens' vectors on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.cache.features.vocabulary import STOP

FloatArray = npt.NDArray[np.floating]

ALIGNMENT_NAMES = (
    "mean_low", "mean_high",  # mean best match of content tokens, of the side that has the lower one and of the other
    "worst_low", "worst_high",  # the worst-aligned content token of each side
    "second_low", "second_high",  # the second-worst
    "unaligned_low", "unaligned_high",  # content tokens without a match of `ALIGNED`, per side, over the side's tokens
    "all_low", "all_high",  # mean best match over all tokens
    "other_worst", "other_mean",  # best matches of content tokens whose spelling the other side lacks
    "same_worst", "same_mean",  # likeness of equally spelt content tokens: lower where a word changes its role
    "function_worst",  # the worst-aligned stop word or sign of both sides
    "crossed",  # share of neighbouring content tokens whose best matches stand the other way round
)  # fmt: skip

# What LI features say where a side has no token vectors. Outside of what they measure (-1 to 1 only for opposite
# vectors, which never meet), so a tree cannot take it for a measurement; the verifier has a forest without them.
NEUTRAL = -1.0
# Below this a token counts as unaligned. A first guess, not tuned: the means and worst matches carry the rest.
ALIGNED = 0.6


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's word pieces as the encoder read them, without [CLS] and [SEP]."""

    pieces: tuple[str, ...]
    vectors: FloatArray  # (len(pieces), d), unit length each


def is_content(piece: str) -> bool:
    return piece.startswith("##") or (piece not in STOP and any(character.isalnum() for character in piece))


def alignment_features(asked: Tokens | None, stored: Sequence[Tokens | None]) -> FloatArray:
    """(k, len(ALIGNMENT_NAMES)); rows of `NEUTRAL` where a side has no tokens. One product for all k."""
    out = np.full((len(stored), len(ALIGNMENT_NAMES)), NEUTRAL, np.float64)
    rows = [(at, tokens) for at, tokens in enumerate(stored) if tokens is not None and tokens.pieces]
    if asked is None or not asked.pieces or not rows:
        return out
    theirs = np.concatenate([tokens.vectors for _, tokens in rows]).astype(np.float32, copy=False)
    likeness = asked.vectors.astype(np.float32, copy=False) @ theirs.T
    np.nan_to_num(likeness, copy=False, nan=0.0, posinf=1.0, neginf=-1.0)
    mine = np.array([is_content(piece) for piece in asked.pieces])
    start = 0
    for at, tokens in rows:
        end = start + len(tokens.pieces)
        out[at] = _pair(likeness[:, start:end], asked.pieces, tokens.pieces, mine)
        start = end
    return np.clip(out, -1.0, 1.0)


def _pair(s: FloatArray, a: tuple[str, ...], b: tuple[str, ...], content_a: npt.NDArray[np.bool_]) -> list[float]:
    content_b = np.array([is_content(piece) for piece in b])
    best_a, best_b = s.max(1), s.max(0)
    sides = (_side(best_a, content_a), _side(best_b, content_b))
    features = [pick(left, right) for left, right in zip(*sides, strict=True) for pick in (min, max)]
    in_a, in_b = set(a), set(b)
    other = [best_a[i] for i, piece in enumerate(a) if content_a[i] and piece not in in_b]
    other += [best_b[j] for j, piece in enumerate(b) if content_b[j] and piece not in in_a]
    same = _same(s, a, b, content_a)
    function = np.concatenate((best_a[~content_a], best_b[~content_b]))
    features += [float(min(other, default=1.0)), float(np.mean(other)) if other else 1.0]
    features += [min(same, default=1.0), sum(same) / len(same) if same else 1.0]
    features += [float(function.min()) if function.size else 1.0, _crossed(s, content_a)]
    return features


def _side(best: FloatArray, content: npt.NDArray[np.bool_]) -> tuple[float, float, float, float, float]:
    """Mean, worst and second-worst best match of content tokens, share of unaligned ones, mean of all tokens."""
    chosen = np.sort(best[content]) if content.any() else np.sort(best)
    second = chosen[1] if chosen.size > 1 else chosen[0]
    unaligned = (chosen < ALIGNED).sum() / chosen.size
    return float(chosen.mean()), float(chosen[0]), float(second), float(unaligned), float(best.mean())


def _same(s: FloatArray, a: tuple[str, ...], b: tuple[str, ...], content_a: npt.NDArray[np.bool_]) -> list[float]:
    places: dict[str, list[int]] = {}
    for j, piece in enumerate(b):
        places.setdefault(piece, []).append(j)
    return [
        float(s[i, places[piece]].max() if len(places[piece]) > 1 else s[i, places[piece][0]])
        for i, piece in enumerate(a)
        if content_a[i] and piece in places
    ]


def _crossed(s: FloatArray, content_a: npt.NDArray[np.bool_]) -> float:
    order = s.argmax(1)[content_a]
    return float((np.diff(order) < 0).mean()) if order.size > 1 else 0.0
