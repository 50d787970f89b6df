"""The keys `trust`, `confirm` and `confirm_by` of the section `cache.admit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from gateway.config.policy.model import Route
from gateway.config.validation import Extension, Problem, one_of

SECTION = "cache.admit."
TrustForm = Annotated[Literal["own", "tenant", "global"], one_of("own", "tenant", "global")] | None
SUMMARY = (
    "The clients that an unconfirmed response serves: only its writer (`own`), the writer's `tenant`, or all of the "
    "scope (`global`). Without it, all of the scope."
)
FURTHER = (
    Extension(
        "confirm",
        "trust",
        "How many independent clients must have got equal answers, the writer included, until a response serves its "
        "whole scope. Without it, `trust` is for good.",
        Annotated[int, Field(ge=2, le=5, strict=True)] | None,
    ),
    Extension(
        "confirm_by",
        "confirm",
        "Two clients are independent if they have another API `key`, or if they have another key or `user`.",
        Annotated[Literal["key", "user"], one_of("key", "user")],
        "key",
    ),
)


@dataclass(frozen=True, slots=True)
class TrustRule:
    """The trust of a route."""

    trust: Literal["own", "tenant", "global"] | None = None  # whom an unconfirmed answer serves; None: its whole scope
    confirm: int | None = None  # how many independent clients must agree until an answer serves its whole scope
    confirm_by: Literal["key", "user"] = "key"  # the difference that makes two clients independent

    @classmethod
    def of(cls, route: Route) -> Self:
        """Return the rule of a route."""
        return cls(**{key.removeprefix(SECTION): rule for key, rule in route.rules.items() if key.startswith(SECTION)})

    def withholds(self, route: Route) -> bool:
        """Return whether an unconfirmed answer of the route serves only a part of its scope."""
        return route.caches and (self.trust == "own" or (self.trust == "tenant" and route.share == "global"))


def trust_problems(route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the faults of the keys next to each other and to the rest of a route, which is as written."""
    cache = route.get("cache")
    admit = cache.get("admit") if isinstance(cache, dict) else None
    if not isinstance(cache, dict) or not isinstance(admit, dict):
        return
    trust, confirm, share = admit.get("trust"), admit.get("confirm"), cache.get("share", "tenant")
    if admit.get("confirm_by") is not None and (confirm is None or trust != "own"):
        yield Problem(("cache", "admit", "confirm_by"), "has no effect, expected it next to trust: own and confirm")
    if trust == "global" and share != "global":
        yield Problem(("cache", "admit"), f"trust: global is wider than share: {share}, expected trust: own or tenant")
    elif confirm is not None and trust != "own" and not (trust == "tenant" and share == "global"):
        yield Problem(
            ("cache", "admit"),
            "confirm has nothing to confirm, because an answer serves its whole scope at once, expected trust: own, "
            "or trust: tenant next to share: global",
        )
    if confirm is not None and not isinstance(cache.get("semantic"), dict):
        yield Problem(("cache", "admit"), "confirm compares answers to similar questions, expected cache.semantic")
