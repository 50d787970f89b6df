"""The traffic log: what `traffic` of `config.yaml` may say. Which routes are recorded, their policy says."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.config.units import PositiveDuration, Size
from gateway.config.validation import Section


class Traffic(Section):
    """Bounds of what routes with `record` leave under `data_dir/traffic`."""

    max_size: Size = 2**30  # of all segments; the oldest are removed
    max_age: PositiveDuration = 7 * 86_400.0  # of a segment's last request
    segment_size: Size = 16 * 2**20  # beyond which the next segment is begun
    segment_age: PositiveDuration = 3_600.0  # likewise
    flush: PositiveDuration = 1.0  # how often what was recorded is written: as much is lost with the process
    max_buffered: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000  # requests that wait for it; more are dropped
    simulate_timeout: PositiveDuration = 120.0  # of `POST /admin/simulate`
