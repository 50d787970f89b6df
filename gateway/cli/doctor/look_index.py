"""Facts of an index outside, asked over the gateway's own client, and of a GPU for one in process. Nothing is made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.adapters.faiss.index_plan import Plan
from gateway.cache.index_factory import build_device, milvus_version
from gateway.cli.doctor.findings import Finding, fault, ok
from gateway.config import Config
from gateway.config.urls import lite_file
from gateway.errors import IndexUnavailable, StartFailed

CHECK = "index"
ANSWER_S = 5.0


async def index(config: Config, environ: Mapping[str, str], gateway_runs: bool) -> list[Finding]:
    """None where the index is in process and on the CPU: the limits say what that takes."""
    url, device = config.index.url, config.index.device
    if device != "cpu":
        try:
            build_device(device)
        except StartFailed as error:
            return [fault(CHECK, str(error), "do what it says")]
        return [ok(CHECK, f"faiss finds {device}, for partitions of {Plan().place_from:,} entries and more")]
    if config.index.adapter != "milvus" or url is None:
        return []
    if lite_file(url) and gateway_runs:
        return [ok(CHECK, f"the gateway that runs has {url} open; one process may, so it is not looked at")]
    try:
        version = await asyncio.to_thread(milvus_version, config, environ, ANSWER_S)
    except StartFailed as error:
        return [fault(CHECK, str(error), "do what it says, or use index.adapter: faiss")]
    except IndexUnavailable as error:
        todo = "start it, or put index.url or index.token_env right; until then nothing is found in other words"
        return [fault(CHECK, f"Milvus at {url} does not answer: {error}", todo)]
    return [ok(CHECK, f"Milvus {version} at {url} answers")]
