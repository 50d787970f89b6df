"""Score the complexity of a route's requests: by the shipped score, or by a better fit to its labels. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgpack
import numpy as np

from gateway.errors import SnapshotInvalid
from gateway.routing.route_fit import LabelArrays, PromptLabels, RouteFit, fit_from, fit_models, judge_fit, row_from
from gateway.scores import ScoredPrompt

VERSION = 2

MIN_LABELS = 200
REFIT_GROWTH, MIN_NEW_LABELS = 0.1, 50  # a fit is tried again after a tenth more labels, and after 50 at least

SAVE_EVERY = 50  # labels: a snapshot has up to 4 MB, and the loss of 50 labels changes no fit


@dataclass(frozen=True, slots=True)
class FitResult:
    """The result of a fit. `fit` is None if it was not better than the shipped score."""

    gain: float  # over the shipped score on labels it has not seen, in standard errors
    fit: RouteFit | None


def attempt_fit(labels: LabelArrays) -> FitResult:
    """Fit, and keep the fit if it passes the gate. It takes seconds on one core: call it in a thread."""
    judged = judge_fit(labels)
    return FitResult(judged.gain, RouteFit(fit_models(labels), judged.blend) if judged.passes else None)


def prompt_from(score: float, row: bytes) -> ScoredPrompt:
    """Return the prompt of another gateway's label. Raise `ValueError` or `TypeError` where its row cannot be read."""
    return ScoredPrompt(score, row_from(row))


@dataclass(frozen=True, slots=True)
class ScoreSource:
    """The model that scores a route's requests."""

    number: int  # of the fit in force, counted from 1; 0 for the shipped score
    fitted_to: int  # labels
    labels: int  # that the route has now
    gain: float | None  # of the last attempt, see `FitResult`; None before the first

    def __str__(self) -> str:
        if self.number:
            return f"the route's own fit {self.number}, to {self.fitted_to:,} labels"
        if self.gain is not None:
            return f"the shipped score, as a fit to {self.fitted_to:,} labels was no better"
        return f"the shipped score; the route has {self.labels:,} of {MIN_LABELS} labels for its own fit"


class RouteScore:
    """The labelled prompts of a route, and the fit in force."""

    def __init__(self, basis: str) -> None:
        self._basis = basis
        self.resets = 0
        self._forget()

    def _forget(self) -> None:
        self._labels = PromptLabels()
        self._fit: RouteFit | None = None
        self._fit_at = 0  # labels so far, at the fit in force
        self._seen = 0  # labels so far, those that were dropped included
        self._tried_at = 0  # of them, at the last attempt
        self._fitted_to = 0  # labels of the last attempt
        self._gain: float | None = None
        self._number = 0
        self._fits = 0  # numbers are not used twice
        self._changes = 0  # attempts and resets
        self.version = 0  # counts changes of the learned state

    def reset(self) -> None:
        """Forget the labels and the fit. Fit numbers go on."""
        fits, changes = self._fits, self._changes
        self._forget()
        self._fits, self._changes, self.version = fits, changes + 1, 1
        self.resets += 1

    def score(self, prompt: ScoredPrompt) -> float:
        """Return the complexity in [0, 1]. A fit to 4,000 labels takes 1 ms beyond the shipped score."""
        return prompt.score if self._fit is None else self._fit.score(prompt)

    def observe(self, prompt: ScoredPrompt, gain: float, weight: float) -> None:
        """Record a label: the gain of the large model's answer, 1 better, 0 equal, -1 worse. `weight` in (0, 1]."""
        if len(prompt.row):
            self._labels.add(prompt, gain, min(1.0, weight))
            self._seen += 1
            self.version += 1

    @property
    def is_due(self) -> bool:
        """Whether there are labels enough for another attempt."""
        new = max(MIN_NEW_LABELS, REFIT_GROWTH * self._fitted_to)
        return len(self._labels) >= MIN_LABELS and (self._tried_at == 0 or self._seen - self._tried_at >= new)

    def labels(self) -> LabelArrays:
        return self._labels.arrays()

    def apply(self, attempt: FitResult, fitted_to: int) -> bool:
        """Apply an attempt with so many labels, and return whether scores change.

        A fit in force stays after a refused attempt that was better than the shipped score, and falls back to it
        otherwise.
        """
        self._tried_at, self._fitted_to, self._gain = self._seen, fitted_to, attempt.gain
        self._changes += 1
        self.version += 1
        if attempt.fit is not None:
            self._fits += 1
            self._fit, self._fit_at, self._number = attempt.fit, self._seen, self._fits
            return True
        if self._fit is None or attempt.gain > 0:
            return False
        self._fit, self._number = None, 0
        return True

    @property
    def source(self) -> ScoreSource:
        return ScoreSource(self._number, self._fitted_to, len(self._labels), self._gain)

    # Saving and loading, see `LearnedState`

    @property
    def state(self) -> tuple[int, int]:
        return self._changes, self._seen // SAVE_EVERY

    def snapshot(self) -> bytes:
        """Return the state as bytes, at most 4 MB."""
        labels, fit = self._labels.arrays(), self._fit
        packed: bytes = msgpack.packb(
            (
                VERSION,
                self._basis,
                labels.rows.shape[1],
                labels.rows.astype("<f2").tobytes(),
                labels.rest.astype("<f4").tobytes(),
                None
                if fit is None
                else (fit.blend.numbers(), fit.models.ridge.astype("<f4").tobytes(), len(fit.models.places)),
                (self._seen, self._tried_at, self._fitted_to, self._fit_at, self._number, self._fits, self._changes),
                self._gain,
            )
        )
        return packed

    def restore(self, data: bytes) -> None:
        """Load a snapshot. Raise `SnapshotInvalid`."""
        try:
            form, basis, width, rows, rest, fit, counts, gain = msgpack.unpackb(data, use_list=False)
            if (form, basis) != (VERSION, self._basis):
                raise SnapshotInvalid(
                    f"labels of version {form!r} with {basis!r}, expected version {VERSION}, {self._basis!r}"
                )
            shape = (-1, int(width)) if width else (0, 0)
            label_arrays = LabelArrays(
                np.frombuffer(rows, "<f2").reshape(shape), np.frombuffer(rest, "<f4").reshape(-1, 3)
            )
            seen, tried_at, fitted_to, fit_at, number, fits, changes = (int(count) for count in counts)
            gain = None if gain is None else float(gain)
            labels = PromptLabels()
            labels.restore(label_arrays)
            fitted = None if fit is None else _fit_from(label_arrays, seen - fit_at, *fit)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise SnapshotInvalid(str(error) or type(error).__name__) from None
        self._labels, self._fit, self._gain = labels, fitted, gain
        self._seen, self._tried_at, self._fitted_to, self._fit_at = seen, tried_at, fitted_to, fit_at
        self._number, self._fits, self._changes, self.version = number, fits, changes, seen + changes


def _fit_from(labels: LabelArrays, since: int, numbers: Sequence[float], ridge: bytes, count: int) -> RouteFit:
    """Return the fit to the last `count` labels before the last `since` ones. Raise `ValueError`.

    The oldest of a full ring may be gone by now. The others stand for them."""
    end = max(0, len(labels) - max(0, since))
    begin = max(0, end - int(count))
    return fit_from(LabelArrays(labels.rows[begin:end], labels.rest[begin:end]), np.frombuffer(ridge, "<f4"), numbers)
