"""Build the upstreams of HTTP endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from yarl import URL

from gateway.config.backends import HttpUpstream, OpenAIBackendConfig
from gateway.config.environment import read_secret
from gateway.upstream.aiohttp_session import AiohttpSession
from gateway.upstream.building import BackendCore, batching, model_names
from gateway.upstream.http_backend import Account, HttpBackend
from gateway.upstream.http_client import AiohttpClient, Http1Client, HttpClient, MayResend, always
from gateway.upstream.retry import Resends
from gateway.upstream.upstream import UpstreamConfig


@dataclass(slots=True, eq=False)
class HttpUpstreams:
    """`HttpUpstreams` implements `UpstreamBuilder` for the adapters that are named after an HTTP protocol."""

    core: BackendCore

    def __call__(self, name: str, section: OpenAIBackendConfig, resends: Resends) -> list[UpstreamConfig]:
        environ = self.core.environ
        shared = read_secret(environ, section.api_key_env, f"backends.{name}.api_key_env")
        upstreams = []
        for i, address in enumerate(section.addresses):
            own = read_secret(environ, address.api_key_env, f"backends.{name}.upstreams[{i}].api_key_env")
            upstreams.append(self._upstream(name, section, address, own or shared, resends))
        return upstreams

    def _upstream(
        self, name: str, section: OpenAIBackendConfig, address: HttpUpstream, api_key: str | None, resends: Resends
    ) -> UpstreamConfig:
        config, clock = self.core.config, self.core.clock
        passthrough = config.auth.mode == "passthrough"
        # Twice as many connections as calls, because some of them only wait for the end of a body.
        session = AiohttpSession(section.timeouts.connect, 2 * section.max_concurrency)
        backend = HttpBackend(
            name,
            address.url,
            section,
            client=client_of(section, address.url, session, resends.allow),
            session=session,
            account=Account(api_key, passthrough, config.auth.credential_rules),
            server=config.server,
            clock=clock,
        )
        own_account = api_key is not None or not passthrough
        return UpstreamConfig(
            batching(backend, section, clock, shared=own_account),
            address.url,
            address.weight,
            provider=section.adapter,
            models=model_names(section),
            own_account=own_account,
        )


def client_of(
    section: OpenAIBackendConfig, url: str, session: AiohttpSession, may_resend: MayResend = always
) -> HttpClient:
    """Return the HTTP client of an upstream. Only the `aiohttp` client uses `session`."""
    origin = str(URL(url).origin())
    if section.client == "aiohttp":
        return AiohttpClient(origin, session, may_resend)
    return Http1Client(
        origin,
        connect_s=section.timeouts.connect,
        max_connections=section.max_concurrency,
        may_resend=may_resend,
    )
