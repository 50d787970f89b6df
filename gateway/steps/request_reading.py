"""Reads what a request is: its target, its client, its call, its models, those who caused it, and its route.

This is the one place. Steps, both forms of explain, the tests of a policy, jobs and batches call these functions and
those of `gateway.dialects.targets`. So nothing matches on what somebody else reads differently.

| part of a request | function | read |
|---|---|---|
| path, query | `targets.target_of` | before the request has a context |
| dialect | `known.claimant_of` | in `ParseAndRoute` |
| key, tenant, account | `credentials.CredentialRules.read` | in `Authenticate`, once for each head |
| call, models | `read_body` | in `ParseAndRoute` |
| route | `find_route` | right after that |
| subjects | `subjects_of_call` | right after that |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote

from multidict import CIMultiDict

from gateway.calls import Call, Dialect
from gateway.config.policy.model import Policy, Route
from gateway.config.schema import MAX_BODY_KEYS
from gateway.context import RequestContext
from gateway.credentials import NONE_SHOWN, CredentialRules
from gateway.dialects.known import MODELS, find_dialect, find_reader
from gateway.dialects.named_models import content_type_of, model_in_body, models_named
from gateway.dialects.targets import target_of
from gateway.errors import GatewayError
from gateway.ports import Clock
from gateway.principal import Principal
from gateway.request_fields import Client
from gateway.streams import BufferedBody
from gateway.subjects import SubjectsOf

ONE_MODEL = MODELS + "/"  # before the name of a model
# The paths on which a policy may send a model's calls to another backend, the most common first.
CALLED_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/completions")


Models = tuple[str, ...]
"""The models that a request names, the one that decides its route first."""


Parse = Callable[[Dialect, str, bytes, Mapping[str, str]], Call]


def parse_call(dialect: Dialect, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
    """Return the call of a body. Raise `GatewayError`."""
    return dialect.parse(path, body, headers)


def read_models(request: RequestContext, in_body: str | None) -> Models:
    """Return the models of a request without a dialect. `in_body` is the model that its body names. Raise
    `BadRequest`."""
    return models_named(request.method, request.path, request.query, in_body)


def read_body(
    request: RequestContext, body: bytes, max_keys: int = MAX_BODY_KEYS, *, reads: bool = True
) -> tuple[Call | None, Models]:
    """Read a whole body, decoded. Return its call, None if no dialect reads the request, and its models. Raise
    `BadRequest`, and `PayloadTooLarge` beyond `max_keys`. Unless it `reads`, a request that passes through has no call.
    """
    if request.dialect is not None:
        call = request.dialect.parse(request.path, body, request.headers)
        return call, (call.model,)
    in_body = model_in_body(body, content_type_of(request.headers), max_keys) if body else None
    models = read_models(request, in_body)
    passing = read_passing(request, body) if reads else None
    return passing, with_model_of(passing, models)


def with_model_of(call: Call | None, models: Models) -> Models:
    """Return the models of a request that passes through, with the one of its call.

    A call is read under any type of the body. So it may name a model that no reader of models has seen.
    """
    return models if call is None or not call.model or call.model in models else (*models, call.model)


def read_passing(request: RequestContext, body: bytes, parse: Parse = parse_call) -> Call | None:
    """Return the call of a request that passes through, for the caches, or None if it is none that they can read for
    certain. Then its backend judges it. `body` is whole and decoded."""
    dialect = find_reader(request.method, request.path)
    if dialect is None:
        return None
    try:
        call = parse(dialect, request.path, body, request.headers)
    except GatewayError:
        return None
    request.dialect, request.body = dialect, body
    return call


def find_route(request: RequestContext, call: Call | None, models: Models, policy: Policy) -> Route:
    """Return the route of a request, and note its model. A path that only writes another one differently becomes that
    one."""
    if call is not None and call.path is not None:
        request.path, request.dialect = call.path, call.dialect
    request.model = model = models[0] if models else ""
    route = policy.match(request.path, model, request.client.tenant, request.headers)
    if call is None and request.method == "GET" and request.path.startswith(ONE_MODEL):
        return _route_of_model(request, policy, route)
    return route


def _route_of_model(request: RequestContext, policy: Policy, default: Route) -> Route:
    """Return the route of the calls for the model that a path names. Another backend than that of the path may have
    it."""
    name = unquote(request.path.removeprefix(ONE_MODEL))
    for path in CALLED_PATHS:
        route = policy.match(path, name, request.client.tenant, request.headers)
        if route is not policy.match(path, "", request.client.tenant, request.headers):
            return route
    return default


def subjects_of_call(user: str | None, permit: Principal | None, digests: SubjectsOf | None) -> tuple[str, ...]:
    """Return the digests of those who caused a call: the user that it names, and its API key. Without a key there are
    no `digests`."""
    return () if digests is None else digests(user, "" if permit is None else permit.name)


def described_request(
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tenant: str | None,
    rules: CredentialRules | None,
    clock: Clock,
) -> tuple[RequestContext, Call | None, Models]:
    """Return the request that somebody describes, as it would be read on its way to a backend, with its call and its
    models.

    The tenant is that of the credentials unless `tenant` is given. `rules` tell which headers identify a client.
    Without them its API key does, which is not looked up. Raise `BadRequest`.
    """
    read, sent = target_of(method, target), CIMultiDict(headers)
    shown = NONE_SHOWN if rules is None else rules.read(sent, read.query)
    tenant = shown.tenant if tenant is None else tenant
    request = RequestContext(
        request_id="described",
        method=method,
        path=read.path,
        query=read.query,
        headers=sent,
        body_source=BufferedBody(),
        clock=clock,
        client=Client(tenant, tenant, shown),
    )
    request.body, request.dialect = body, find_dialect(method, read.path)
    return request, *read_body(request, body)
