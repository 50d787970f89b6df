"""The peers in the comparison: how each is started, called and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.fixtures import body
from bench.protocols import QUESTION

ENVIRONMENTS = Path(".venv-peers").absolute()  # made by `make bench-peers`, one folder a peer
LITELLM = """
model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
litellm_settings:
  cache: true
  cache_params: {{type: local}}
  set_verbose: false
"""
PORTKEY = (
    'Authorization: Bearer none\r\nx-portkey-config: {{"provider":"openai","api_key":"none",'
    '"custom_host":"http://127.0.0.1:{upstream}/v1"}}\r\n'
)


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A request. `expect`: text in the head of each answer, which shows that the request took its path."""

    body: bytes
    expect: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway to compare with.

    `command`: made from its own port, the endpoint's, and a folder for its files. `headers`: of each request, with a
    place for `upstream`. `how`: the configuration in words. A way that is None it does not have.
    """

    name: str
    program: Path  # without which it is not installed
    command: Callable[[int, int, Path], list[str]]
    how: str
    through: PeerRequest | None
    hit: PeerRequest | None
    environ: Mapping[str, str] = field(default_factory=dict)
    headers: str = ""


def litellm(port: int, upstream: int, folder: Path) -> list[str]:
    (folder / "litellm.yaml").write_text(LITELLM.format(upstream=upstream))
    config = ["--config", str(folder / "litellm.yaml")]
    return [str(_bin("litellm")), *config, "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]


def portkey(port: int, *_: object) -> list[str]:
    return ["node", str(_PORTKEY), f"--port={port}", "--headless"]


def vllm_router(port: int, upstream: int, *_: object) -> list[str]:
    quick = ["--policy", "round_robin", "--disable-retries", "--disable-circuit-breaker", "--log-level", "error"]
    at = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://127.0.0.1:{upstream}"]
    return [str(_bin("vllm-router")), *at, *quick]


def gptcache(port: int, upstream: int, *_: object) -> list[str]:
    script = Path(__file__).with_name("gptcache_server.py")
    return [str(_bin("gptcache", "python")), str(script), str(port), f"http://127.0.0.1:{upstream}"]


def _bin(name: str, program: str = "") -> Path:
    return ENVIRONMENTS / name / "bin" / (program or name)


_PORTKEY = ENVIRONMENTS / "portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
_SAME, _UNCACHED = body(QUESTION), body(QUESTION, "uncached")
PEERS = (
    Peer(
        "LiteLLM", _bin("litellm"), litellm,
        "proxy, uvicorn with uvloop, one worker, LITELLM_MODE=PRODUCTION, log level ERROR, no database, no keys; "
        "cache of type local",
        through=PeerRequest(body(QUESTION, cache={"no-cache": True, "no-store": True})),
        hit=PeerRequest(_SAME, "x-litellm-cache-key"),
        environ={
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            "LITELLM_TELEMETRY": "False",
        },
    ),
    Peer(
        "Portkey", _PORTKEY, portkey,
        "gateway on Node, headless; its npm build has no cache",
        through=PeerRequest(_SAME), hit=None, headers=PORTKEY,
    ),
    Peer(
        "vllm-router", _bin("vllm-router"), vllm_router,
        "round robin over one worker, no retries, no circuit breaker, log level error; it has no cache",
        through=PeerRequest(_SAME), hit=None,
    ),
    Peer(
        "GPTCache", _bin("gptcache", "gptcache_server"), gptcache,
        "the library in its exact form (a map in memory) behind aiohttp on uvloop (bench/peers/gptcache_server.py)",
        through=None, hit=PeerRequest(_SAME, "x-cache: hit"),
    ),
)  # fmt: skip
OURS_THROUGH, OURS_HIT = PeerRequest(_UNCACHED, "detail=policy"), PeerRequest(_SAME, "detail=exact")
