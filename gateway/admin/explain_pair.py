"""`nearhit explain --stored ... --asked ...`: what a route makes of two prompts, offline or by a running gateway."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import aiohttp
import orjson

from gateway.admin.explain import PATH, Pair, explain_pair, pair_from, route_of
from gateway.cache.explanation import ExplainedPair
from gateway.cache.model_factory import build_embedder, build_verifier
from gateway.cache.threshold.route_control import RouteControl
from gateway.config.load import load_config
from gateway.config.policy.load import load_policy
from gateway.errors import BadRequest, EmbedderUnavailable, StartFailed

WAIT_S = 30.0  # for a running gateway's answer


def checked(pair: Pair) -> Pair:
    """The rules of the admin port for what comes from a command line. Raises `BadRequest`."""
    return pair_from(_body(pair))


async def explain_offline(pair: Pair, config_path: Path, environ: Mapping[str, str]) -> ExplainedPair:
    """With what the configuration names and the verifier's calibration: nothing is learnt yet. Raises `BadRequest`,
    `StartFailed`, and whatever the reading of the configuration and the model's loading raise."""
    config = load_config(config_path, environ)
    route, rule = route_of(load_policy(config.policies, config), pair.route)
    verifier = build_verifier(config.verifier, config.embedder)
    encoder, embedder = build_embedder(config.embedder)
    try:
        control = RouteControl(verifier.prior, f"{encoder.fingerprint} {verifier.basis}")
        return await explain_pair(pair, route, rule, control, embedder, verifier)
    except EmbedderUnavailable as error:
        raise StartFailed(f"the embedding model gives no answer: {error}") from None
    finally:
        embedder.close()
        verifier.close()


async def explain_by(admin: str, token: str | None, pair: Pair) -> ExplainedPair:
    """By the gateway whose admin port is at this URL. Raises `BadRequest` with its sentence, or one about it."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as session,
            session.post(admin.rstrip("/") + PATH, data=_body(pair), headers=headers) as response,
        ):
            status, body = response.status, await response.read()
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise BadRequest(f"--admin {admin} is no URL: expected one such as http://127.0.0.1:9090") from None
    except (TimeoutError, aiohttp.ClientError) as error:
        raise BadRequest(f"no answer from {admin}: {error or 'it takes too long'}") from None
    return _read(admin, status, body)


def _read(admin: str, status: int, body: bytes) -> ExplainedPair:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise BadRequest(f"{admin} answers with status {status} and no JSON object: is that a gateway's admin port?")
    if status != 200:
        raise BadRequest(f"{admin} answers with status {status}: {value.get('error', 'no reason is given')}")
    try:
        return ExplainedPair.from_json(value)
    except ValueError as error:
        raise BadRequest(f"{admin} answers otherwise than this version expects: {error}") from None


def _body(pair: Pair) -> bytes:
    try:
        return orjson.dumps({"stored": pair.stored, "asked": pair.asked, "route": pair.route})
    except orjson.JSONEncodeError:
        raise BadRequest("the prompts are not valid UTF-8") from None
