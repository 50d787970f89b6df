"""Where a route starts: what `weights/verifier.json` says of each verifier's scores, measured by `training.prior`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.cache.threshold.ledger import BANDS
from gateway.ports import PriorBands
from gateway.weight_files import WeightsCorrupt

WEIGHTS = Path(__file__).parent / "weights"
ABOUT_FILE = "verifier.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a verifier's scores were worth."""

    curve: tuple[float, float]
    prior: PriorBands

    def probability(self, score: float) -> float:
        """That the stored answer is right, as often as a request's best neighbour was."""
        slope, offset = self.curve
        return 1.0 / (1.0 + math.exp(-(slope * score + offset)))


def load_calibration(verifier: str, directory: Path = WEIGHTS) -> Calibration:
    """Raises `WeightsCorrupt`."""
    try:
        return calibration_of(json.loads((directory / ABOUT_FILE).read_bytes()), verifier)
    except OSError as error:
        raise WeightsCorrupt(f"the verifier's calibration cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsCorrupt(f"{directory.name}/{ABOUT_FILE} is not as measured: {error!r}") from None


def calibration_of(about: Mapping[str, Any], verifier: str) -> Calibration:
    """Raises ValueError, KeyError or TypeError."""
    slope, offset = map(float, about["curves"][verifier])
    prior = [(float(wrong), float(rate)) for wrong, rate in about["priors"][verifier]]
    if len(prior) != BANDS or not all(0.0 <= number <= 1.0 for band in prior for number in band):
        raise ValueError(f"{len(prior)} bands of {verifier}, expected {BANDS} with shares between 0 and 1")
    if not (0.0 <= slope <= 100.0 and abs(offset) <= 100.0):
        raise ValueError(f"a curve of {slope} and {offset} for {verifier}, which must rise with the score")
    return Calibration((slope, offset), prior)
