"""What the misses of a route come to, where that is no more than to ask one upstream and to store what it says."""

from __future__ import annotations

from typing import NamedTuple

from gateway.backends.direct import Direct
from gateway.flights.flight import Joinable
from gateway.messages import Provenance
from gateway.stages.admit import Admit


class Fetch(NamedTuple):
    """For who does without the stages, see `gateway.data_port.misses`. `origin`: of the answers."""

    direct: Direct
    admit: Admit
    flights: dict[str, Joinable]
    origin: Provenance
