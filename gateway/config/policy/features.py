"""The keys of features in a policy: which feature a key belongs to, and the sections that take such keys.

A feature is imported when a policy names its key, or when all keys are listed. So the core knows no feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BeforeValidator, PrivateAttr

from gateway.config.validation import Extension, Problem, Section
from gateway.errors import StartupError
from gateway.extensions import Extensions

FEATURES = Extensions(
    "nearhit.features",
    {
        "guard": "gateway.features.guard.feature:GUARD",
        "route.shadow": "gateway.features.mirror.feature:MIRROR",
        "route.rollout": "gateway.features.light.feature:ROLLOUT",
        "route.cascade": "gateway.features.cascade.feature:CASCADE",
        "route.complexity": "gateway.features.classifier.feature:CLASSIFIER",
        "limits": "gateway.features.limits.feature:LIMITS",
        "record": "gateway.features.recorder.feature:RECORD",
        "spend": "gateway.features.spend.feature:BOOKS",
        "session": "gateway.features.sessions.feature:SESSIONS",
        "trace": "gateway.features.prompt_traces.feature:TRACE",
        "privacy": "gateway.features.privacy.feature:PRIVACY",
        "cache.admit.tools": "gateway.features.tool_calls.feature:TOOL_CALLS",
        "cache.admit.trust": "gateway.features.trust.feature:TRUST",
        "cache.admit.confirm": "gateway.features.trust.feature:TRUST",
        "cache.admit.confirm_by": "gateway.features.trust.feature:TRUST",
        "cache.mcp": "gateway.features.mcp.feature:MCP_RESULTS",
    },
)
"""The features of routes by their key, such as `cache.mcp` or `session`. Their steps in one place of the pipeline have
this order. The features of other packages follow."""


MAX_DEPTH = 2  # of the sections in which keys of features are


class KeyedFeature(Protocol):
    """The part of `gateway.feature.Feature` that a policy file is read with."""

    @property
    def key(self) -> str:
        """Its path in a route."""

    @property
    def after(self) -> str:
        """The key that it follows in lists of keys. It is empty if it comes last."""

    @property
    def summary(self) -> str:
        """The description of the key, for editors and the table of settings."""

    @property
    def further(self) -> Sequence[Extension]:
        """Its other keys, in the same section."""

    @property
    def among_tiers(self) -> bool:
        """Whether its key means nothing on a route with one backend."""

    @property
    def backend_fields(self) -> Sequence[str]:
        """The fields of its section that name backends."""

    @property
    def meters(self) -> bool:
        """Whether the calls of its routes are metered, whatever their limits and prices."""

    @property
    def form(self) -> Any:
        """The annotated type of the values that a file may write. A value of None turns the feature off."""

    def problems(self, route: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield the contradictions between the feature and the other keys of a route. `route` is as written."""

    def warnings(self, route: Mapping[str, Any], adapters: Mapping[str, str]) -> Iterator[Problem]:
        """Yield what is valid and unlikely to be meant. `adapters` has the known adapters of backends."""


@dataclass(frozen=True, slots=True)
class BrokenFeature:
    """A feature whose code cannot be imported. Each use of its key is a fault."""

    key: str
    reason: str
    after: str = ""
    summary: str = ""
    further: Sequence[Extension] = ()
    among_tiers: bool = False
    backend_fields: Sequence[str] = ()
    meters: bool = False

    @property
    def form(self) -> Any:
        def refuse(_: object) -> object:
            raise ValueError(self.reason)

        return Annotated[Any, BeforeValidator(refuse)]

    def problems(self, _: Mapping[str, Any]) -> Iterator[Problem]:
        return iter(())

    def warnings(self, _: Mapping[str, Any], __: Mapping[str, str]) -> Iterator[Problem]:
        return iter(())


def feature_of(key: str) -> KeyedFeature | None:
    """Return the feature of a key, such as `cache.mcp`, or None if no package has one."""
    try:
        feature: KeyedFeature | None = FEATURES.load(key)
    except StartupError as error:
        return BrokenFeature(key, str(error))
    return feature


class FeatureSection(Section):
    """A section whose further keys belong to features."""

    prefix: ClassVar[str] = ""
    """The path of the section in a route, such as `cache.`."""

    _rules: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def rules(self) -> Mapping[str, Any]:
        """The rule of each feature that is on, by its key such as `cache.mcp`."""
        return self._rules

    @classmethod
    def further_keys(cls) -> Iterator[Extension]:
        for key in FEATURES.names():
            if key.startswith(cls.prefix) and "." not in key.removeprefix(cls.prefix):
                feature = feature_of(key)
                assert feature is not None  # it is one of the names
                yield _extension(feature, key)

    @classmethod
    def further_key(cls, key: str) -> Extension | None:
        feature = None if "." in key else feature_of(cls.prefix + key)
        return None if feature is None else _extension(feature, cls.prefix + key)

    def extend(self, values: Mapping[str, Any]) -> None:
        self._rules = {self.prefix + key: rule for key, rule in values.items() if rule is not None}


def _extension(feature: KeyedFeature, key: str) -> Extension:
    name = key.rpartition(".")[2]
    if key == feature.key:
        return Extension(name, feature.after, feature.summary, feature.form)
    return next(each for each in feature.further if each.key == name)


def meters(keys: Iterable[str]) -> bool:
    """Return whether a feature with one of these keys has the calls of its routes metered."""
    return any(feature is not None and feature.meters for feature in map(feature_of, keys))


def feature_problems(route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the contradictions of each feature that a route turns on. `route` is as written."""
    for feature in _features_on(route):
        yield from feature.problems(route)


def feature_warnings(route: Mapping[str, Any], adapters: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the warnings of each feature that a route turns on. `route` is as written."""
    for feature in _features_on(route):
        yield from feature.warnings(route, adapters)


def _features_on(route: Mapping[str, Any]) -> Iterator[KeyedFeature]:
    """Yield the features whose keys a route turns on, each once."""
    features = dict.fromkeys(map(feature_of, _keys_of(route)))
    yield from (feature for feature in features if feature is not None)


def _keys_of(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys of a route and of its sections that may be those of features which are on."""
    for key, value in section.items():
        if value not in (None, False, "off"):
            yield f"{prefix}{key}"
        if isinstance(value, dict) and prefix.count(".") < MAX_DEPTH:
            yield from _keys_of(value, f"{prefix}{key}.")
