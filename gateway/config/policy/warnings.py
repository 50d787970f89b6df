"""What is allowed in a policy and hardly meant: warnings, each only where it is certain.

Works on values as they were written, of files without faults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway.config.errors import Fault
from gateway.config.policy.cross_checks import JUDGES, Rule, at, rules_of
from gateway.config.policy.globs import covers
from gateway.config.policy.targets import names_in
from gateway.config.yaml_loader import Source

MAX_COMPARED = 512  # rules: each is held against all before it
_GIVE_NO_LOGPROBS = frozenset({"anthropic", "triton", "kserve", "tfserving", "torchserve"})


def doubts(sources: Sequence[Source], adapters: Mapping[str, str]) -> Iterator[Fault]:
    """Warnings about the rules of all files, in their order. `adapters`: of each backend, as far as known."""
    rules = [rule for source in sources for rule in rules_of(source)]
    yield from _never_reached(rules[:MAX_COMPARED])
    for rule in rules:
        yield from _shared(rule)
        yield from _without_logprobs(rule, adapters)


def unused(sources: Sequence[Source], backends: Collection[str], place: str) -> Iterator[Fault]:
    """Backends of the configuration that no rule names. `sources`: all files; `place`: what the warning is of."""
    used: set[object] = set()
    for source in sources:
        for _, _, rule in rules_of(source):
            used |= {name for _, name in names_in(rule["route"])} | {at(rule, keys) for keys in JUDGES}
    for name in sorted(set(backends) - used):
        yield Fault(
            place, 1, (), f"no rule uses the backend {name!r} of the configuration, expected one that does, or none"
        )


def _never_reached(rules: Sequence[Rule]) -> Iterator[Fault]:
    for place, (source, path, rule) in enumerate(rules):
        match = rule["match"]
        if not match:  # the default: that nothing stands before it which takes all is checked elsewhere
            continue
        for earlier, earlier_path, other in rules[:place]:
            if not _covers(other["match"], match):
                continue
            name, line = other["name"], earlier.locate(earlier_path)[0]
            if _covers(match, other["match"]):
                why = "which matches the same, expected another match or one of the two"
            else:
                why = "which is wider and takes all of it, expected the narrower rule first"
            yield source.fault(
                (*path, "match"), f"never reached: before it comes {name!r} ({earlier.file}:{line}), {why}"
            )
            break


def _covers(wide: Mapping[str, Any], narrow: Mapping[str, Any]) -> bool:
    if not all(covers(wide.get(key), narrow.get(key)) for key in ("path", "model", "tenant")):
        return False
    asked = [(name.lower(), glob) for name, glob in narrow.get("headers", {}).items()]
    return all(
        any(name.lower() == other and covers(glob, narrower) for other, narrower in asked)
        for name, glob in wide.get("headers", {}).items()
    )


def _shared(rule: Rule) -> Iterator[Fault]:
    source, path, written = rule
    cache, tenant = written.get("cache") or {}, written["match"].get("tenant")
    if cache.get("share") != "global" or (tenant is not None and not set(tenant) & set("*?[")):
        return
    semantic, exact = (isinstance(cache.get(kind), dict) for kind in ("semantic", "exact"))
    if semantic or exact:
        what = "what one tenant was answered, another is served"
        alike = ", for questions that are only alike, too" if semantic else ""
        expected = "expected share: tenant, unless nothing in these prompts and answers belongs to anybody"
        yield source.fault((*path, "cache", "share"), f"{what}{alike}, {expected}")


def _without_logprobs(rule: Rule, adapters: Mapping[str, str]) -> Iterator[Fault]:
    source, path, written = rule
    route = written["route"]
    cascade = route.get("cascade") or {}
    if cascade.get("check") != "logprobs" or cascade.get("otherwise", "escalate") != "escalate":
        return
    lightest = route.get("light") or (route.get("tiers") or [None])[0]
    names = [lightest] if isinstance(lightest, str) else list(lightest or ())
    if names and all(adapters.get(name) in _GIVE_NO_LOGPROBS for name in names):
        said = ", ".join(f"{name!r} ({adapters[name]})" for name in names)
        message = (
            f"{said} gives no log probabilities, so each of its answers is thrown away, expected otherwise: verifier"
        )
        yield source.fault((*path, "route", "cascade", "check"), message)
