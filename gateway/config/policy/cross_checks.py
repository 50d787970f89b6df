"""What must hold between rules and files. Works on values as they were written, faulty ones included, so that these
faults are found together with all others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from gateway.config.errors import Fault, KeyPath, show, unknown
from gateway.config.policy.targets import names_in
from gateway.config.yaml_loader import Source

JUDGES = (("cache", "semantic", "audit", "judge"), ("route", "audit", "judge"))
Rule = tuple[Source, KeyPath, dict[str, Any]]
"""One rule as it was written: its file, the path to it, its keys."""


def contradictions(sources: Sequence[Source], backends: Collection[str], ends: bool) -> Iterator[Fault]:
    """Faults between the rules of all files, in their order.

    `backends` is what the configuration has; when empty nothing is held against it. `ends`: the last of `sources`
    is the last file of the policy, so that its last rule must be the default.
    """
    rules = [rule for source in sources for rule in rules_of(source)]
    yield from _repeated_names(rules)
    yield from _unreachable(rules)
    if ends and sources:
        yield from _no_default(sources[-1])
    if backends:
        yield from _unknown_backends(rules, sorted(backends))


def rules_of(source: Source) -> Iterator[Rule]:
    """The rules of a file that are mappings at all."""
    routes = source.value.get("routes")
    for index, rule in enumerate(routes if isinstance(routes, list) else ()):
        if isinstance(rule, dict):
            yield source, ("routes", index), rule


def _repeated_names(rules: Sequence[Rule]) -> Iterator[Fault]:
    first: dict[str, str] = {}
    for source, path, rule in rules:
        name = rule.get("name")
        if not isinstance(name, str):
            continue
        place = f"{source.file}:{source.locate((*path, 'name'))[0]}"
        if name in first:
            yield source.fault((*path, "name"), f"{name!r} is taken by {first[name]}, expected another name")
        first.setdefault(name, place)


def _unreachable(rules: Sequence[Rule]) -> Iterator[Fault]:
    for source, path, rule in rules[:-1]:
        match = rule.get("match")
        if isinstance(match, dict) and all(pattern == "*" or pattern == {} for pattern in match.values()):
            yield source.fault(
                (*path, "match"), "matches everything, no rule after it is ever reached, expected it last"
            )


def _no_default(source: Source) -> Iterator[Fault]:
    rules = list(rules_of(source))
    if not rules:
        return
    _, path, rule = rules[-1]
    if isinstance(rule.get("match"), dict) and rule["match"]:
        yield source.fault(
            (*path, "match"), "the last rule must be the default for every other request, expected match: {}"
        )


def _unknown_backends(rules: Sequence[Rule], backends: Sequence[str]) -> Iterator[Fault]:
    for source, path, rule in rules:
        route = rule.get("route")
        named = [(("route", *keys), name) for keys, name in names_in(route if isinstance(route, dict) else {})]
        for keys, name in [*named, *((keys, at(rule, keys)) for keys in JUDGES)]:
            if isinstance(name, str) and name not in backends:
                yield source.fault((*path, *keys), unknown(f"backend {show(name)}", name, backends))


def at(rule: Any, keys: Sequence[str]) -> Any:
    """What is written there; None where nothing is."""
    for key in keys:
        rule = rule.get(key) if isinstance(rule, dict) else None
    return rule
