"""An OpenID Connect issuer as far as a gateway sees one: discovery, keys, tokens; over HTTP, in this process."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm


class Issuer:
    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, Any] = {}
        self.fetched = {"discovery": 0, "jwks": 0}
        self.discovery: dict[str, Any] = {}
        self.answer: web.Response | None = None  # instead of the keys
        self.rotate("one")

    def rotate(self, kid: str, kind: str = "RS256") -> None:
        """A new key beside those that there are."""
        generated: Any = (
            ec.generate_private_key(ec.SECP256R1())
            if kind == "ES256"
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )
        self.keys[kid] = (kind, generated)

    def jwks(self) -> dict[str, Any]:
        found = []
        for kid, (kind, key) in self.keys.items():
            algorithm: Any = ECAlgorithm if kind == "ES256" else RSAAlgorithm
            found.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig", "alg": kind})
        return {"keys": found}

    def token(self, kid: str = "one", *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Good for a minute, for Ann of the platform's team; a claim of None is left out."""
        kind, key = self.keys[kid]
        now = int(time.time())
        given = {"iss": self.url, "aud": "nearhit", "sub": "ann", "iat": now, "exp": now + 60, "groups": ["platform"]}
        kept = {name: value for name, value in (given | claims).items() if value is not None}
        return jwt.encode(kept, key, algorithm=kind, headers={"kid": kid, **(headers or {})})

    async def _discovery(self, request: web.Request) -> web.Response:
        self.fetched["discovery"] += 1
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.discovery})

    async def _keys(self, request: web.Request) -> web.Response:
        self.fetched["jwks"] += 1
        return web.json_response(self.jwks()) if self.answer is None else self.answer


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    app = web.Application()
    app.add_routes([web.get("/.well-known/openid-configuration", issuer._discovery), web.get("/keys", issuer._keys)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield issuer
    finally:
        await runner.cleanup()
