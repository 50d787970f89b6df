"""Read the files of a folder into a `Policy`, or into all of their faults."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from gateway.config import Config
from gateway.config.errors import ConfigError, ConfigInvalid, sort_errors
from gateway.config.policy.consistency import rule_errors, rule_warnings, unused_backends
from gateway.config.policy.features import meters
from gateway.config.policy.model import (
    VERSION_HEADERS,
    Policy,
    PolicySource,
    ReplaySettings,
    Route,
    RouteMatch,
    SloSettings,
    Target,
    compile_glob,
    tier_from_parts,
)
from gateway.config.policy.schema import (
    NO_AUDIT,
    MatchRule,
    PolicyFile,
    RouteRule,
    TargetRule,
)
from gateway.config.policy.tests import Expectation, compiled_expectations
from gateway.config.validation import error_messages
from gateway.config.yaml_loader import YamlSource, load_yaml, read_file
from gateway.priority import Priority

DEFAULT_THRESHOLD = 0.5  # complexity at which the light model's answer is as likely to be worse as not


def compile_routes(file: PolicyFile, source: YamlSource) -> Iterator[Route]:
    """Yield the routes of one file."""
    for index, rule in enumerate(file.routes):
        yield _compile_route(rule, source.file, source.locate(("routes", index))[0])


def _compile_route(rule: RouteRule, file: str, line: int) -> Route:
    cache = rule.cache
    rules = {**rule.rules, **cache.rules, **cache.admit.rules, **rule.route.rules}
    return Route(
        name=rule.name,
        target=_compile_target(rule.route),
        match=_compile_match(rule.match),
        exact_ttl_s=cache.exact.ttl if cache.exact else None,
        semantic=cache.semantic,
        share=cache.share,
        vary=tuple(dict.fromkeys((*VERSION_HEADERS, *cache.vary))),
        jitter=cache.jitter,
        stale_while_revalidate_s=cache.stale_while_revalidate,
        stale_if_error_s=cache.stale_if_error,
        admission=cache.admit,
        replay=ReplaySettings(cache.replay == "paced", cache.replay_rate, cache.fresh_ids),
        latency_budget_s=rule.route.latency_budget,
        slo=SloSettings(rule.route.confidence, rule.route.confidence_of == "request", rule.route.late),
        priority=Priority[rule.route.priority.upper()],
        client_priority=rule.route.client_priority,
        metered=meters(rules),
        expose_headers=rule.expose_headers,
        rules=rules,
        file=file,
        line=line,
    )


def _compile_target(rule: TargetRule) -> Target:
    return replace(
        _compile_tiers(rule),
        large_share=rule.large_share,
        quality=rule.quality,
        audit=rule.audit or NO_AUDIT,
        learn=rule.learn,
        fallback=rule.fallback,
    )


def _compile_tiers(rule: TargetRule) -> Target:
    if rule.backend is not None:
        return Target((tier_from_parts(None, rule.backend),))
    given = rule.tiers if rule.tiers is not None else (rule.light, rule.large)
    *lower, best = [parts for parts in given if parts is not None]  # the schema requires all of them, or a backend
    names = ["light", *(None for _ in lower[1:]), "large"]
    tiers = tuple(tier_from_parts(name, parts) for name, parts in zip(names, [*lower, best], strict=True))
    tuned = dict.fromkeys(part.tuned for parts in (*lower, best) for part in parts if part.tuned is not None)
    steps = (DEFAULT_THRESHOLD,) if rule.escalate_above is None else rule.escalate_above
    return Target(tiers, steps, tuned=tuple(tuned))


def _compile_match(rule: MatchRule) -> RouteMatch:
    headers = ((name.lower(), compile_glob(glob)) for name, glob in rule.headers.items())
    return RouteMatch(
        compile_glob(rule.path),
        compile_glob(rule.model),
        compile_glob(rule.tenant),
        # `*` requires the header, with any value.
        tuple((name, wanted or _match_any) for name, wanted in headers),
    )


def _match_any(_: str) -> bool:
    return True


LAST_FILE = "default.yaml"

MAX_FILES = 256


@dataclass(frozen=True, slots=True)
class PolicyReader:
    """The policy of some files, as far as they are readable."""

    policy: Policy | None  # None if there are faults
    faults: tuple[ConfigError, ...]
    warnings: tuple[ConfigError, ...]


def load_policy(folder: Path, config: Config) -> Policy:
    """Read every `*.yaml` of the folder itself, in the order of their names, with `default.yaml` last.

    Raise `ConfigInvalid` with the faults of all files.
    """
    texts, faults = read_texts(policy_files(folder))
    # If a file is missing, the last rule is unknown.
    reading = read_policy(texts, config.backends, ends=not faults)
    if faults or reading.policy is None:
        raise ConfigInvalid([*faults, *reading.faults])
    return reading.policy


def read_texts(paths: Iterable[Path]) -> tuple[list[PolicySource], list[ConfigError]]:
    """Return the readable files, and the faults of the others."""
    texts: list[PolicySource] = []
    faults: list[ConfigError] = []
    for path in paths:
        try:
            texts.append(PolicySource(str(path), read_file(path, "a policy file")))
        except ConfigInvalid as invalid:
            faults += invalid.faults
    return texts, faults


def policy_from_text(text: str | bytes, name: str, config: Config) -> Policy:
    """Return the policy of one text; faults show `name` as the file. Raise `ConfigInvalid`."""
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    reading = read_policy([PolicySource(name, content)], config.backends)
    if reading.policy is None:
        raise ConfigInvalid(reading.faults)
    return reading.policy


def policy_files(folder: Path) -> list[Path]:
    """Return the files of a policy in the order of their rules.

    Leave out hidden files, because editors keep unfinished copies in them. Raise `ConfigInvalid`.
    """
    try:
        shown = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise _folder_fault(folder, f"cannot be read ({error.strerror}), expected a folder of policy files") from None
    files = [path for path in shown if path.suffix == ".yaml"]
    if not files:
        hint = ", each with a name that ends in .yaml" if any(path.suffix == ".yml" for path in shown) else ""
        raise _folder_fault(folder, f"the folder has no policy file, expected at least {LAST_FILE}{hint}")
    if len(files) > MAX_FILES:
        raise _folder_fault(folder, f"{len(files)} policy files, expected at most {MAX_FILES}")
    return sorted(files, key=lambda path: file_order(path.name))


def file_order(name: str) -> tuple[bool, str]:
    """Return a sort key that brings file names into the order of their rules."""
    return name == LAST_FILE, name


def read_policy(
    texts: Sequence[PolicySource],
    backends: Collection[str],
    *,
    ends: bool = True,
    folder: Path | None = None,
    adapters: Mapping[str, str] | None = None,
) -> PolicyReader:
    """Read files in their order.

    With `ends`, the last file is the policy's last, so it must end in the default rule. With `folder`, the files are
    all files of this folder. `adapters` has the adapters of the backends; without them, the warnings that need them are
    left out.
    """
    faults: list[ConfigError] = []
    warnings: list[ConfigError] = []
    sources: list[YamlSource] = []
    routes: list[Route] = []
    expectations: list[Expectation] = []
    for text in texts:
        try:
            source = load_yaml(text.content, text.file, None)
        except ConfigInvalid as invalid:
            faults += invalid.faults
            ends = ends and text is not texts[-1]
            continue
        sources.append(source)
        faults += source.faults
        try:
            file = PolicyFile.model_validate(source.value)
        except ValidationError as invalid:
            faults += (
                source.fault(path, message)
                for path, message in error_messages(invalid)
                if path not in source.unreadable
            )
        else:
            routes += compile_routes(file, source)
            expectations += compiled_expectations(file.tests, source)
    unreadable = {(source.file, path) for source in sources for path in source.unreadable}
    faults += (fault for fault in rule_errors(sources, backends, ends) if (fault.file, fault.path) not in unreadable)
    policy = None
    if not faults:
        warnings += rule_warnings(sources, adapters or {})
        warnings += () if folder is None else unused_backends(sources, backends, str(folder))
        policy = Policy(tuple(routes), hash_texts(texts), sort_errors(warnings), tuple(texts), tuple(expectations))
    return PolicyReader(policy, sort_errors(faults), sort_errors(warnings))


def hash_texts(texts: Iterable[PolicySource]) -> str:
    """Return the hash of a policy: of the names and the bytes of its files, in their order."""
    digest = hashlib.sha256()
    for text in texts:
        name = text.name.encode("utf-8", "surrogateescape")
        digest.update(b"%d:%b%d:%b" % (len(name), name, len(text.content), text.content))
    return digest.hexdigest()[:12]


def _folder_fault(folder: Path, message: str) -> ConfigInvalid:
    return ConfigInvalid([ConfigError(str(folder), 1, (), message)])
