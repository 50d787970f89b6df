"""Checks between the rules of a policy: unknown backends, unreachable rules, doubtful values.

They work on values as written, faulty ones included, so that all faults are found together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gateway.config.errors import ConfigError, KeyPath, format_value, unknown_name
from gateway.config.policy.features import feature_warnings
from gateway.config.policy.targets import backend_names
from gateway.config.yaml_loader import YamlSource

_STAR, _ONE = "*", "?"


def covers(wide: str | None, narrow: str | None) -> bool:
    """Return whether `wide` matches every text that `narrow` matches. None stands for any text, or for no text at all.

    False may also mean that a comparison piece by piece cannot tell.
    """
    if wide is None or wide == _STAR:
        return True
    if narrow is None:
        return False
    a, b = _glob_tokens(wide), _glob_tokens(narrow)
    # row[j]: whether the rest of `a` covers b[j:]; `a` is read from its end to its beginning.
    row = [False] * len(b) + [True]
    for token in reversed(a):
        above, row = row, [False] * (len(b) + 1)
        for j in range(len(b), -1, -1):
            if token == _STAR:  # takes nothing, or the next piece whatever it is
                row[j] = above[j] or (j < len(b) and row[j + 1])
            else:
                row[j] = j < len(b) and above[j + 1] and _covers_character(token, b[j])
    return row[0]


def _covers_character(token: str, other: str) -> bool:
    """Return whether a piece covers another, both for one character. A star stands for any number."""
    if other == _STAR:
        return False
    if token in (_ONE, other):
        return True
    return len(other) == 1 and other != _ONE and fnmatchcase(other, token)


def _glob_tokens(glob: str) -> Sequence[str]:
    """Split a glob into `*`, `?`, `[...]` and characters, as `fnmatch` does: an unclosed bracket is a character."""
    tokens: list[str] = []
    i = 0
    while i < len(glob):
        end = _closing_bracket(glob, i) if glob[i] == "[" else None
        if end is not None:
            tokens.append(glob[i : end + 1])
        else:
            tokens.append("[[]" if glob[i] == "[" else glob[i])
        i = i + 1 if end is None else end + 1
    return tokens


def _closing_bracket(glob: str, start: int) -> int | None:
    """Return the end of a set that begins at `start`. A `]` right after its beginning, or after `!`, belongs to it."""
    first = start + 2 if glob[start + 1 : start + 2] == "!" else start + 1
    end = glob.find("]", first + 1)
    return None if end < 0 else end


JUDGES = (("cache", "semantic", "audit", "judge"), ("route", "audit", "judge"))

Rule = tuple[YamlSource, KeyPath, dict[str, Any]]
"""One rule as written: its file, its path, its keys."""


def rule_errors(sources: Sequence[YamlSource], backends: Collection[str], ends: bool) -> Iterator[ConfigError]:
    """Yield the faults between the rules of all files, in their order.

    `backends` are those of the configuration; if there are none, references to backends are not checked. With `ends`,
    the last of `sources` is the last file of the policy, so its last rule must be the default.
    """
    rules = [rule for source in sources for rule in read_rules(source)]
    yield from _duplicate_names(rules)
    yield from _unreachable(rules)
    if ends and sources:
        yield from _missing_default(sources[-1])
    if backends:
        yield from _unknown_backends(rules, sorted(backends))


def read_rules(source: YamlSource) -> Iterator[Rule]:
    """Yield the rules of a file that are mappings."""
    routes = source.value.get("routes")
    for index, rule in enumerate(routes if isinstance(routes, list) else ()):
        if isinstance(rule, dict):
            yield source, ("routes", index), rule


def _duplicate_names(rules: Sequence[Rule]) -> Iterator[ConfigError]:
    first: dict[str, str] = {}
    for source, path, rule in rules:
        name = rule.get("name")
        if not isinstance(name, str):
            continue
        place = f"{source.file}:{source.locate((*path, 'name'))[0]}"
        if name in first:
            yield source.fault(
                (*path, "name"), f"the name {name!r} is already used at {first[name]}, expected another name"
            )
        first.setdefault(name, place)


def _unreachable(rules: Sequence[Rule]) -> Iterator[ConfigError]:
    for source, path, rule in rules[:-1]:
        match = rule.get("match")
        if isinstance(match, dict) and all(pattern == "*" or pattern == {} for pattern in match.values()):
            yield source.fault(
                (*path, "match"), "matches every request, so later rules are unreachable, expected this rule last"
            )


def _missing_default(source: YamlSource) -> Iterator[ConfigError]:
    rules = list(read_rules(source))
    if not rules:
        return
    _, path, rule = rules[-1]
    if isinstance(rule.get("match"), dict) and rule["match"]:
        yield source.fault(
            (*path, "match"), "the last rule must be the default for every other request, expected match: {}"
        )


def _unknown_backends(rules: Sequence[Rule], backends: Sequence[str]) -> Iterator[ConfigError]:
    for source, path, rule in rules:
        route = rule.get("route")
        named = [(("route", *keys), name) for keys, name in backend_names(route if isinstance(route, dict) else {})]
        for keys, name in [*named, *((keys, value_at(rule, keys)) for keys in JUDGES)]:
            if isinstance(name, str) and name not in backends:
                yield source.fault((*path, *keys), unknown_name(f"backend {format_value(name)}", name, backends))


def value_at(rule: Any, keys: Sequence[str]) -> Any:
    """Return the value at a path of keys, or None."""
    for key in keys:
        rule = rule.get(key) if isinstance(rule, dict) else None
    return rule


# Warnings: valid policies that are unlikely to be meant. They read the values of files without faults.
MAX_COMPARED = 512  # rules: each is compared with all rules before it


def rule_warnings(sources: Sequence[YamlSource], adapters: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield warnings about the rules of all files, in their order. `adapters` has the known adapters of backends."""
    rules = [rule for source in sources for rule in read_rules(source)]
    yield from _shadowed_rules(rules[:MAX_COMPARED])
    for rule in rules:
        yield from _sharing_warnings(rule)
        source, path, written = rule
        for problem in feature_warnings(written, adapters):
            keys = (problem.key,) if isinstance(problem.key, str) else problem.key or ()
            yield source.fault((*path, *keys), problem.error_sentence)


def unused_backends(sources: Sequence[YamlSource], backends: Collection[str], place: str) -> Iterator[ConfigError]:
    """Yield a warning for each backend of the configuration that no rule names. `sources` are all files."""
    used: set[object] = set()
    for source in sources:
        for _, _, rule in read_rules(source):
            used |= {name for _, name in backend_names(rule["route"])} | {value_at(rule, keys) for keys in JUDGES}
    for name in sorted(set(backends) - used):
        yield ConfigError(
            place,
            1,
            (),
            f"no rule uses the backend {name!r} of the configuration, expected a rule with it, or no such backend",
        )


def _shadowed_rules(rules: Sequence[Rule]) -> Iterator[ConfigError]:
    for place, (source, path, rule) in enumerate(rules):
        match = rule["match"]
        if not match:  # the default; another check finds a rule before it that matches every request
            continue
        for earlier, earlier_path, other in rules[:place]:
            if not _match_covers(other["match"], match):
                continue
            name, line = other["name"], earlier.locate(earlier_path)[0]
            if _match_covers(match, other["match"]):
                why = "matches the same requests, expected another match, or only one of the two rules"
            else:
                why = "is wider, expected the narrower rule first"
            yield source.fault(
                (*path, "match"), f"unreachable: the earlier rule {name!r} ({earlier.file}:{line}) {why}"
            )
            break


def _match_covers(wide: Mapping[str, Any], narrow: Mapping[str, Any]) -> bool:
    if not all(covers(wide.get(key), narrow.get(key)) for key in ("path", "model", "tenant")):
        return False
    headers = [(name.lower(), glob) for name, glob in narrow.get("headers", {}).items()]
    return all(
        any(name.lower() == other and covers(glob, narrower) for other, narrower in headers)
        for name, glob in wide.get("headers", {}).items()
    )


def _sharing_warnings(rule: Rule) -> Iterator[ConfigError]:
    source, path, written = rule
    cache, tenant = written.get("cache") or {}, written["match"].get("tenant")
    if cache.get("share") != "global" or (tenant is not None and not set(tenant) & set("*?[")):
        return
    semantic, exact = (isinstance(cache.get(kind), dict) for kind in ("semantic", "exact"))
    if semantic or exact:
        what = "other tenants get the answers of one tenant"
        alike = ", even to similar questions" if semantic else ""
        expected = "expected share: tenant, unless nothing in these prompts and answers is private"
        yield source.fault((*path, "cache", "share"), f"{what}{alike}, {expected}")
