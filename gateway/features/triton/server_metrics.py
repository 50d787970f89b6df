"""Read what a Triton server reports of its queue and its GPUs.

The gateway knows its own calls. Calls of other gateways wait in the same queue on the server, and only its metrics show
them. A prediction counts them as calls ahead.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from gateway.upstream.upstream import ServerLoad, Upstream

LOG = logging.getLogger("nearhit.models")

READ_EVERY_S = 1.0  # Triton computes its gauges at each read, and its GPU metrics every 2 s
TIMEOUT_S = 2.0
MAX_BYTES = 4 * 2**20  # of a page; a server with a hundred models has some 200 kB

_SAMPLE = re.compile(r"^(nv_\w+)(?:\{([^}]*)\})? ([-+.\w]+)", re.MULTILINE)
_MODEL = re.compile(r'(?:^|,)model="([^"]*)"')
_QUEUE = "nv_inference_pending_request_count"
_UTILIZATION, _MEMORY_USED = "nv_gpu_utilization", "nv_gpu_memory_used_bytes"


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """`ServerMetrics` is the content of a page of metrics. A field is None if the server does not report it."""

    queued: int | None = None  # requests that wait for one of the models
    gpu_utilization: float | None = None  # of the busiest GPU, in [0, 1]
    gpu_memory_bytes: float | None = None  # used, of all GPUs together


def metrics_of(page: str, models: Sequence[str]) -> ServerMetrics:
    """Return what the page says of these models and of the GPUs. Samples that are no numbers are left out. Pure."""
    queued, utilization, memory = list[float](), list[float](), list[float]()
    for name, labels, value in _SAMPLE.findall(page):
        values = {_QUEUE: queued, _UTILIZATION: utilization, _MEMORY_USED: memory}.get(name)
        if values is None or (name == _QUEUE and not _is_of(labels, models)):
            continue
        try:
            values.append(float(value))
        except ValueError:
            continue
    return ServerMetrics(
        int(sum(queued)) if queued else None, max(utilization, default=None), sum(memory) if memory else None
    )


def _is_of(labels: str, models: Sequence[str]) -> bool:
    match = _MODEL.search(labels)
    return match is not None and match[1] in models


class MetricsReader:
    """`MetricsReader` keeps `server_load` of an upstream up to date.

    The upstream counts only the gateway's own calls while the server does not answer. The log has one line then, and
    one when it answers again.
    """

    def __init__(self, endpoint: Upstream, url: str, models: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._url = url
        self._models = models
        self._is_away = False

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await self.read(session)
                await asyncio.sleep(READ_EVERY_S)

    async def read(self, session: aiohttp.ClientSession) -> None:
        """Read the metrics once."""
        try:
            async with session.get(self._url, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise aiohttp.ClientError(f"status {answer.status}")
                page = b""
                while len(page) < MAX_BYTES and (piece := await answer.content.read(MAX_BYTES - len(page))):
                    page += piece
        except (aiohttp.ClientError, TimeoutError) as error:
            self._endpoint.server_load = ServerLoad()
            self._log_change(f"{type(error).__name__}: {error}")
            return
        metrics = metrics_of(page.decode("utf-8", "replace"), self._models)
        # Its own calls are in the server's queue too, or in a model: they count once.
        elsewhere = max(0, (metrics.queued or 0) - self._endpoint.load)
        self._endpoint.server_load = ServerLoad(elsewhere, metrics.gpu_utilization, metrics.gpu_memory_bytes)
        self._log_change("" if metrics.queued is not None else f"no {_QUEUE} of {', '.join(self._models)}")

    def _log_change(self, fault: str) -> None:
        """Log a change between present and away."""
        if bool(fault) == self._is_away:
            return
        self._is_away = bool(fault)
        fields = {"backend": self._endpoint.backend.name, "url": self._url, "error": fault[:200]}
        if fault:
            LOG.warning("the server's metrics are away: its queue is not in predictions", extra={"fields": fields})
        else:
            LOG.info("the server's metrics are read", extra={"fields": fields})
