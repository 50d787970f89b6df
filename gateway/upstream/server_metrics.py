"""Read what a model server reports of its queue, its KV cache and its GPUs.

The gateway knows its own calls. Calls of other gateways wait in the same queue on the server, and only its metrics show
them. Predictions and the choice of an upstream count them. Most names of metrics are those of the Gateway API Inference
Extension (its proposal 003, Model Server Protocol). Those of Triton and TGI are in their own references.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import aiohttp

from gateway.upstream.upstream import ServerLoad, Upstream

LOG = logging.getLogger("nearhit.models")

READ_EVERY_S = 1.0  # Triton computes its gauges at each read, and its GPU metrics every 2 s
TIMEOUT_S = 2.0  # of one read; so no figure is older than this and the pause together
MAX_VALUE = 2.0**53  # above every count and every memory; a sum of such samples is a number
MAX_SHARE = 1.05  # of a share: rounding, and no percentage
MAX_BYTES = 4 * 2**20  # of a page; a server with a hundred models has some 200 kB


class _Fact(Enum):
    """The meaning of a gauge."""

    WAITING = auto()  # calls in the queue
    RUNNING = auto()  # calls in the batch
    KV_CACHE = auto()  # the share of the KV cache that is in use, in [0, 1]
    GPU_UTILIZATION = auto()
    GPU_MEMORY = auto()


_SHARES = frozenset({_Fact.KV_CACHE, _Fact.GPU_UTILIZATION})

# By name, and by a label where the name alone does not tell.
_GAUGES: Mapping[str, _Fact | Mapping[str, _Fact]] = {
    "vllm:num_requests_waiting": _Fact.WAITING,
    "vllm:num_requests_running": _Fact.RUNNING,
    "vllm:kv_cache_usage_perc": _Fact.KV_CACHE,
    "vllm:gpu_cache_usage_perc": _Fact.KV_CACHE,  # before vLLM 0.10
    "sglang:num_queue_reqs": _Fact.WAITING,
    "sglang:num_running_reqs": _Fact.RUNNING,
    "sglang:token_usage": _Fact.KV_CACHE,
    "sglang_num_queue_reqs": _Fact.WAITING,
    "sglang_num_running_reqs": _Fact.RUNNING,
    "sglang_token_usage": _Fact.KV_CACHE,
    "tgi_queue_size": _Fact.WAITING,
    "tgi_batch_current_size": _Fact.RUNNING,
    "trtllm_num_requests_waiting": _Fact.WAITING,
    "trtllm_num_requests_running": _Fact.RUNNING,
    "trtllm_kv_cache_utilization": _Fact.KV_CACHE,
    "nv_trt_llm_request_metrics": {'request_type="waiting"': _Fact.WAITING, 'request_type="scheduled"': _Fact.RUNNING},
    "nv_trt_llm_kv_cache_block_metrics": {'kv_cache_block_type="fraction"': _Fact.KV_CACHE},
    "nv_inference_pending_request_count": _Fact.WAITING,
    "nv_gpu_utilization": _Fact.GPU_UTILIZATION,
    "nv_gpu_memory_used_bytes": _Fact.GPU_MEMORY,
}
_PER_MODEL = "nv_inference_pending_request_count"  # one server has the queues of several models
# The labels end with their line, so that a page of label sets that are not closed is read in linear time.
_LABELS = r'\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\}'
_SAMPLE = re.compile(rf"^({'|'.join(map(re.escape, _GAUGES))})(?:{_LABELS})?[ \t]+([-+.\w]+)", re.MULTILINE)
_MODEL = re.compile(r'(?:^|,)model="([^"]*)"')
# Labels of the parts of one engine: each part that reports reports the same calls.
_RANKS = re.compile(r'(?:^|,)\s*(?:tp_rank|pp_rank|moe_ep_rank|pid)="[^"]*"')


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """`ServerMetrics` is the content of a page of metrics. A field is None if the server does not report it."""

    queued: int | None = None  # calls that wait
    running: int | None = None  # calls in the batch; Triton reports none
    kv_cache: float | None = None  # share in use, of the fullest engine, in [0, 1]
    gpu_utilization: float | None = None  # of the busiest GPU, in [0, 1]
    gpu_memory_bytes: float | None = None  # used, of all GPUs together

    @property
    def calls(self) -> int | None:
        """The calls at the server, or None if it does not report its queue."""
        return None if self.queued is None else self.queued + (self.running or 0)


def metrics_of(page: str, models: Sequence[str]) -> ServerMetrics:
    """Return what the page says of a server, and of these models if the server has several. Samples that are no
    numbers, negative or above `MAX_VALUE` are left out, and so are shares above `MAX_SHARE`. Pure."""
    found: dict[_Fact, dict[str, float]] = {fact: {} for fact in _Fact}
    for fact, part, value in _samples(page, models):
        found[fact][part] = max(value, found[fact].get(part, 0.0))
    waiting, running, memory = (
        sum(found[fact].values()) if found[fact] else None for fact in (_Fact.WAITING, _Fact.RUNNING, _Fact.GPU_MEMORY)
    )
    return ServerMetrics(
        None if waiting is None else int(waiting),
        None if running is None else int(running),
        max(found[_Fact.KV_CACHE].values(), default=None),
        max(found[_Fact.GPU_UTILIZATION].values(), default=None),
        memory,
    )


def _samples(page: str, models: Sequence[str]) -> Iterator[tuple[_Fact, str, float]]:
    """Yield the meaning, the part of the server and the value of each sample that counts."""
    for name, labels, text in _SAMPLE.findall(page):
        gauge = _GAUGES[name]
        fact = gauge if isinstance(gauge, _Fact) else next((gauge[each] for each in gauge if each in labels), None)
        if fact is None or (name == _PER_MODEL and not _is_of(labels, models)):
            continue
        try:
            value = float(text)
        except ValueError:
            continue
        if 0 <= value <= (MAX_SHARE if fact in _SHARES else MAX_VALUE):
            yield fact, _RANKS.sub("", labels), min(value, 1.0) if fact in _SHARES else value


def _is_of(labels: str, models: Sequence[str]) -> bool:
    match = _MODEL.search(labels)
    return match is not None and match[1] in models


class MetricsReader:
    """`MetricsReader` keeps `server_load` of an upstream up to date.

    The upstream counts only the gateway's own calls while the server does not answer. The log has one line then, and
    one when it answers again. The server gets no credentials, but it may ask for the client certificate of `tls`.
    """

    def __init__(self, endpoint: Upstream, url: str, models: Sequence[str], tls: ssl.SSLContext | None = None) -> None:
        self._endpoint = endpoint
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._url = url
        self._models = models
        self._is_away = False

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                while True:
                    await self.read(session)
                    await asyncio.sleep(READ_EVERY_S)
        finally:
            self._endpoint.server_load = ServerLoad()  # whatever ends the reader, its last figures do not stay

    async def read(self, session: aiohttp.ClientSession) -> None:
        """Read the metrics once."""
        try:
            async with session.get(self._url, allow_redirects=False, ssl=self._tls) as answer:
                if answer.status != 200:
                    raise aiohttp.ClientError(f"status {answer.status}")
                page = b""
                while len(page) < MAX_BYTES and (piece := await answer.content.read(MAX_BYTES - len(page))):
                    page += piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._endpoint.server_load = ServerLoad()
            self._log_change(f"{type(error).__name__}: {error}")
            return
        metrics = metrics_of(page.decode("utf-8", "replace"), self._models)
        # Its own calls are in the server's queue too, or in a model: they count once.
        elsewhere = max(0, (metrics.calls or 0) - self._endpoint.load)
        self._endpoint.server_load = ServerLoad(
            elsewhere, metrics.gpu_utilization, metrics.gpu_memory_bytes, metrics.kv_cache
        )
        self._log_change("" if metrics.queued is not None else "the page has no queue of these models")

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
