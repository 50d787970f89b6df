"""Explain how a route judges two prompts, for `nearhit explain --stored ... --asked ...` and for the admin port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import NotRequired, TypedDict, operation
from gateway.admin.pair_knowledge import PairKnowledge
from gateway.admin.responses import json_response
from gateway.cache.explanation import ExplainedPair, LookupDetails, build_explanation
from gateway.cache.feedback import Counterexamples
from gateway.cache.judgement import CandidateScorer, floor_of
from gateway.cache.model_factory import build_embedder, build_verifier
from gateway.cache.redaction import Redaction
from gateway.cache.threshold.route_control import RouteControl
from gateway.calls import Decisive
from gateway.config.load import load_config
from gateway.config.policy.load import load_policy
from gateway.config.policy.model import Policy, Route
from gateway.config.policy.schema import SemanticRule
from gateway.entries import Embedding, Entry
from gateway.errors import BadRequest, EmbedderUnavailable, StartupError
from gateway.feature import features_of
from gateway.outcomes import Bypass
from gateway.ports import LINKED, Embedder, Judgement, Opinion, StoredCandidate, Verifier

# POST /admin/cache/explain. The prompts are neither logged nor stored.
PATH = "/admin/cache/explain"

EXPECTED = 'expected {"stored": "...", "asked": "...", "route": "..."}, the route may be left out'


@dataclass(frozen=True, slots=True)
class PairRequest:
    """A question whose answer counts as stored, and the question of a request. Without `route` the last route
    applies."""

    stored: str
    asked: str
    route: str | None = None


def parse_pair(body: bytes) -> PairRequest:
    """Return the pair of a body. Raise `BadRequest` with a message that does not quote the prompts."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON ({error}): {EXPECTED}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the body is no JSON object: {EXPECTED}")
    unknown = sorted(value.keys() - {"stored", "asked", "route"})
    if unknown:
        raise BadRequest(f"unknown key {unknown[0][:40]!r}: {EXPECTED}")
    for name in ("stored", "asked"):
        if not isinstance(value.get(name), str) or not value[name].strip():
            raise BadRequest(f"{name!r} is missing, empty or no text: {EXPECTED}")
    if not isinstance(value.get("route"), str | None):
        raise BadRequest(f"'route' is no text: {EXPECTED}")
    return PairRequest(value["stored"], value["asked"], value.get("route"))


def semantic_route(policy: Policy, name: str | None) -> tuple[Route, SemanticRule]:
    """Return the route of this name, or the default one, with its semantic cache. Raise `BadRequest`."""
    names = [route.name for route in policy.routes]
    route = policy.routes[-1] if name is None else next((r for r in policy.routes if r.name == name), None)
    if route is None:
        raise BadRequest(f"no route is called {str(name)[:60]!r}: expected {', '.join(names)}")
    if route.semantic is None:
        raise BadRequest(f"the semantic cache of route {route.name!r} is off: there is nothing to explain")
    return route, route.semantic


async def explain_features(
    explanation: ExplainedPair,
    pair: PairRequest,
    route: Route,
    embedder: Embedder,
    knowledge: PairKnowledge | None = None,
) -> ExplainedPair:
    """Return the explanation with what the features of the route say of it. Raise `EmbedderUnavailable`."""

    async def has_entry(accepts: Callable[[Entry], bool]) -> bool:
        if knowledge is None:
            return False
        stored = _focus_of(pair, route.of(Redaction))[0].stored
        return await knowledge.has_entry((await embedder.embed(stored)).vector, stored, route.name, accepts)

    for feature in features_of(route):
        explanation = await feature.explain_pair(explanation, route, has_entry)
    return explanation


async def explain_pair(
    pair: PairRequest,
    route: str,
    rule: SemanticRule,
    control: RouteControl,
    embedder: Embedder,
    verifier: Verifier,
    knowledge: PairKnowledge | None = None,
    redaction: Redaction | None = None,
) -> ExplainedPair:
    """Judge the pair as the semantic lookup would if `pair.stored` were the only stored question.

    The threshold is that of the scope that has this question, for the client that got its answer last. If no scope has
    it, it is that of a cache of the usual size. `knowledge` has the scopes, links and decoys of the gateway. A short
    template is not recognised, because that needs other stored questions. Raise `EmbedderUnavailable`.
    """
    pair, refusal, is_part = _focus_of(pair, redaction)
    # One after the other, as in a lookup: texts in one batch of the quantised model change each other's third digit.
    asked, stored = await embedder.embed(pair.asked), await embedder.embed(pair.stored)
    entry, similarity = _stored_entry(pair), _similarity(asked, stored)
    look = LookupDetails(
        route=route,
        acceptance=rule.acceptance,
        verifier=verifier.basis,
        floor=floor_of(rule.acceptance, verifier),
        features={},
        labels=control.labels,
        partial=refusal or asked.partial_reason or stored.partial_reason,
    )
    scorer, entries, client = CandidateScorer(verifier, embedder, rule.acceptance, Counterexamples()), 0, ""
    if knowledge is not None:
        scorer = CandidateScorer(verifier, embedder, rule.acceptance, knowledge.counterexamples, knowledge.decoys)
        scope = await knowledge.asked_scope(pair.asked, asked.vector, pair.stored, stored.vector, route)
        if scope is not None:
            entry, entries, client = scope.entry, scope.entries, scope.client
            look = replace(look, scope=entry.scope, entries=entries, other_scopes=scope.others)
        else:
            entry = await knowledge.repelling_entry(asked.vector, pair.stored) or entry
    near = [(entry, similarity)]
    if look.partial is not None:  # bounds the text that the verifier reads, too
        first = scorer.of(pair.asked, "", asked, near, control, entries, [Opinion(similarity, 0.0)], client).chosen
        return build_explanation(first, first, look)
    look = replace(look, features=verifier.features(pair.asked, StoredCandidate(pair.stored, similarity)))
    scores = scorer.of(pair.asked, "", asked, near, control, entries, client=client, is_part=is_part)
    first = scores.chosen
    if knowledge is not None and rule.acceptance.min_similarity is None and not first.verbatim:
        linked = await knowledge.linked_entry(pair.asked, pair.stored, look.scope)
        if linked is not None:
            return build_explanation(first, _as_linked(first), look)
    if similarity >= look.floor and scorer.needs_second_opinion(scores):
        await scorer.apply_second_opinion(scores)
    look = replace(look, read_closely=bool(scores.unread), second=scores.second, framed=scores.parts is not None)
    return build_explanation(first, scores.chosen, look)


def _focus_of(pair: PairRequest, redaction: Redaction | None) -> tuple[PairRequest, Bypass | None, bool]:
    """Return the parts of the questions that a lookup compares, and why no lookup compares them.

    The last value says whether the new question is a part of a long prompt.

    Different rests are different scopes, and so are different redacted parts.
    """
    asked, stored = Decisive(b"", b"", pair.asked), Decisive(b"", b"", pair.stored)
    refusal = Bypass.TOO_LONG if asked.context != stored.context else None
    if redaction is not None:
        (asked, mine), (stored, others) = map(redaction.redact_question, (asked, stored))
        refusal = refusal or mine or others or (Bypass.PERSONAL_DATA if asked.context != stored.context else None)
    pair = replace(pair, asked=asked.focus or pair.asked, stored=stored.focus or pair.stored)
    return pair, refusal, asked.focus not in (None, asked.question)


def _as_linked(judged: Judgement) -> Judgement:
    """Return the judgement of a pair that a link names: its score does not matter."""
    return replace(judged, opinion=LINKED, score=1.0, probability=1.0, reason=None)


def _similarity(a: Embedding, b: Embedding) -> float:
    return min(1.0, max(0.0, float(a.vector @ b.vector)))


def _stored_entry(pair: PairRequest) -> Entry:
    """Return an entry with the question only, which is all that a judgement reads."""
    return Entry(
        fingerprint="", scope="", tenant="", route="", model="", operation="", dialect="", question=pair.stored,
        streamed=False, payload=(), content_type="", created=0.0, expires=0.0, backend="", input_tokens=0,
        output_tokens=0, cost_dollars=0.0, upstream_s=0.0,
    )  # fmt: skip


class PairBody(TypedDict):
    stored: str
    """The question whose answer counts as stored."""
    asked: str
    """The question of the request."""
    route: NotRequired[str | None]
    """Default: the last route of the policy."""


@dataclass(frozen=True, slots=True)
class ExplainPairAdmin:
    """`ExplainPairAdmin` serves `POST /admin/cache/explain`."""

    core: AdminCore

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/admin/cache/explain", self._answer)]

    @operation(ExplainedPair, body=PairBody)
    async def _answer(self, request: web.Request) -> web.Response:
        """Explain how the semantic cache of a route judges two prompts, with all that the route has learned.

        The call changes nothing. The prompts are neither logged nor stored.
        """
        try:
            pair = parse_pair(await request.read())
            route, rule = semantic_route(self.core.policy(), pair.route)
            parts = self.core.parts()
            space, memory = parts.spaces.serving, parts.memory
            control = space.controls.of(route.name)
            knowledge = PairKnowledge(
                memory.links, memory.counterexamples, space.decoys, memory.served, space.store, space.index
            )
            found = await explain_pair(
                pair, route.name, rule, control, space.embedder, space.verifier, knowledge, route.of(Redaction)
            )
            found = await explain_features(found, pair, route, space.embedder, knowledge)
        except BadRequest as error:
            return json_response({"error": error.message}, 400)
        except web.HTTPRequestEntityTooLarge:
            return json_response({"error": "the body is larger than 1 MiB: expected two prompts"}, 400)
        except EmbedderUnavailable as error:
            return json_response({"error": str(error)}, 503)
        return json_response(found.as_json())


TIMEOUT_S = 30.0  # for the response of a running gateway


def validate_pair(pair: PairRequest) -> PairRequest:
    """Apply the rules of the admin port to a pair from the command line. Raise `BadRequest`."""
    return parse_pair(_encode_pair(pair))


async def explain_offline(pair: PairRequest, config_path: Path, environ: Mapping[str, str]) -> ExplainedPair:
    """Explain a pair with the models of the configuration and the verifier's own calibration.

    The route has not learned anything. Raise `BadRequest`, `StartupError`, and the errors of `load_config`,
    `load_policy` and `build_embedder`.
    """
    config = load_config(config_path, environ)
    route, rule = semantic_route(load_policy(config.policies, config), pair.route)
    verifier = build_verifier(config.verifier, config.embedder, versions=config.data_dir)
    encoder, embedder = build_embedder(config.embedder)
    try:
        control = RouteControl(verifier.prior, f"{encoder.fingerprint} {verifier.basis}")
        explanation = await explain_pair(
            pair, route.name, rule, control, embedder, verifier, redaction=route.of(Redaction)
        )
        return await explain_features(explanation, pair, route, embedder)
    except EmbedderUnavailable as error:
        raise StartupError(f"the embedding model does not answer: {error}") from None
    finally:
        embedder.close()
        verifier.close()


async def explain_via_gateway(admin: str, token: str | None, pair: PairRequest) -> ExplainedPair:
    """Let the gateway whose admin port has this URL explain a pair. Raise `BadRequest`."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.post(admin.rstrip("/") + PATH, data=_encode_pair(pair), headers=headers) as response,
        ):
            status, body = response.status, await response.read()
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise BadRequest(f"--admin {admin} is not a URL: expected one such as http://127.0.0.1:9090") from None
    except (TimeoutError, aiohttp.ClientError) as error:
        raise BadRequest(f"no answer from {admin}: {error or 'it takes too long'}") from None
    return _parse_response(admin, status, body)


def _parse_response(admin: str, status: int, body: bytes) -> ExplainedPair:
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


def _encode_pair(pair: PairRequest) -> bytes:
    try:
        return orjson.dumps({"stored": pair.stored, "asked": pair.asked, "route": pair.route})
    except orjson.JSONEncodeError:
        raise BadRequest("the prompts are not valid UTF-8") from None
