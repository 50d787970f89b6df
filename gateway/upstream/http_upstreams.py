"""Build the upstreams of HTTP endpoints."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name

from yarl import URL

from gateway.config.backend_keys import CREDENTIALS
from gateway.config.backend_transport import ENVIRONMENT, BackendTls
from gateway.config.backends import HttpUpstream, OpenAIBackendConfig
from gateway.config.environment import read_secret
from gateway.dialects.known import DIALECTS
from gateway.errors import StartupError
from gateway.upstream.aiohttp_session import AiohttpSession
from gateway.upstream.building import BackendCore, IdentityBuilder, batching, metrics_tasks, model_names
from gateway.upstream.http_backend import Account, HttpBackend
from gateway.upstream.http_client import AZURE_KEY, AiohttpClient, Http1Client, HttpClient, MayResend, always
from gateway.upstream.retry import Resends
from gateway.upstream.upstream import UpstreamConfig

BUILDERS: Mapping[str, str] = {
    "api_key_file": "gateway.features.key_sources.file:file_identity",
    "api_key_command": "gateway.features.key_sources.command:command_identity",
}
"""The `IdentityBuilder` of each key that sets one by itself. It is imported when a backend has the key."""


@dataclass(slots=True, eq=False)
class HttpUpstreams:
    """`HttpUpstreams` implements `UpstreamBuilder` for the adapters that are named after an HTTP protocol."""

    core: BackendCore

    def __call__(self, name: str, section: OpenAIBackendConfig, resends: Resends) -> list[UpstreamConfig]:
        shared = self._account(section, section, f"backends.{name}")
        upstreams = []
        for i, address in enumerate(section.addresses):
            own = self._account(section, address, f"backends.{name}.upstreams[{i}]")
            upstreams.append(self._upstream(name, section, address, own if own.is_own else shared, resends))
        return upstreams

    def _account(self, section: OpenAIBackendConfig, keys: OpenAIBackendConfig | HttpUpstream, where: str) -> Account:
        """Return the account that `keys` names, which is at the path `where`."""
        auth, key_header = self.core.config.auth, DIALECTS[section.adapter].endpoint.key_header
        if section.api_version is not None:
            key_header = AZURE_KEY
        api_key = read_secret(self.core.environ, keys.api_key_env, f"{where}.api_key_env")
        identity = None
        for key in CREDENTIALS:
            setting = getattr(keys, key, None)
            place = getattr(setting, "builder", BUILDERS.get(key))
            if setting is not None and place is not None:
                build: IdentityBuilder = resolve_name(place)
                identity = build(self.core, f"{where}.{key}", setting, key_header)
        return Account(api_key, auth.mode == "passthrough", auth.credential_rules, identity)

    def _upstream(
        self, name: str, section: OpenAIBackendConfig, address: HttpUpstream, account: Account, resends: Resends
    ) -> UpstreamConfig:
        config, clock = self.core.config, self.core.clock
        # Twice as many connections as calls, because some of them only wait for the end of a body.
        session = AiohttpSession(
            section.timeouts.connect,
            2 * section.max_concurrency,
            None if section.tls is None else _tls_of(section.tls, f"backends.{name}.tls"),
            proxy_of(section.proxy, address.url, self.core.environ),
        )
        backend = HttpBackend(
            name,
            address.url,
            section,
            client=_with_identity(client_of(section, address.url, session, resends.allow), account, address.url),
            session=session,
            account=account,
            server=config.server,
            clock=clock,
        )
        own_account, models = account.is_own or not account.forwards, model_names(section)
        return UpstreamConfig(
            batching(backend, section, clock, shared=own_account),
            address.url,
            address.weight,
            provider=section.adapter,
            models=models,
            own_account=own_account,
            tasks=metrics_tasks(address.metrics_url, models, session.tls),
        )


def client_of(
    section: OpenAIBackendConfig, url: str, session: AiohttpSession, may_resend: MayResend = always
) -> HttpClient:
    """Return the HTTP client of an upstream. The gateway's own takes only the TLS of `session`, and knows no
    proxies."""
    origin = str(URL(url).origin())
    if section.client == "aiohttp" or session.proxy is not None:
        return AiohttpClient(origin, session, may_resend)
    return Http1Client(
        origin,
        connect_s=section.timeouts.connect,
        max_connections=section.max_concurrency,
        tls=session.tls,
        may_resend=may_resend,
    )


def _with_identity(client: HttpClient, account: Account, url: str) -> HttpClient:
    """Return the client, which authorizes its requests if the account has an identity."""
    if account.identity is None:
        return client
    authorized: HttpClient = resolve_name("gateway.upstream.authorized_client:AuthorizedClient")(
        client, account.identity, str(URL(url).origin())
    )
    return authorized


def _tls_of(files: BackendTls, where: str) -> ssl.SSLContext:
    try:
        context: ssl.SSLContext = resolve_name("gateway.upstream.client_tls:ClientTls").of(files)
    except OSError as error:
        raise StartupError(f"{where}: the files cannot be used: {error.strerror or type(error).__name__}") from None
    return context


def proxy_of(setting: str | None, url: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy on the way to a URL, with its credentials, or None if there is none. `setting` is that of the
    backend.

    Raise `StartupError`, without a part of the URL, if a variable has none that can be used.
    """
    if setting != ENVIRONMENT:
        return setting
    scheme = URL(url).scheme
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    name = next((name for name in names if environ.get(name)), None)
    excluded = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if name is None or resolve_name("gateway.upstream.no_proxy:is_direct")(url, excluded):
        return None
    value = environ[name]
    try:
        proxy = URL(value if "://" in value else f"http://{value}")
    except ValueError:
        proxy = URL()
    if proxy.scheme != "http" or not proxy.host:
        raise StartupError(f"the environment variable {name} is no proxy, expected a URL such as http://proxy:3128")
    return str(proxy)
