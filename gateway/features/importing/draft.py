"""The configuration that an import makes, before it is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_GLOB = re.compile(r"[*?\[]")
_RESERVED = ("light", "large")  # names of the first and the last tier in metrics
_MAX_NAME = 56  # of at most 64 characters: the rest is for a number


@dataclass(slots=True)
class Draft:
    """The sections of config.yaml and the rules of policies/default.yaml, as written."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    backends: dict[str, dict[str, Any]] = field(default_factory=dict)
    routes: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)  # how much of the file is carried over

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of config.yaml, to fill in."""
        return self.sections.setdefault(name, {})

    def need(self, variable: str, purpose: str) -> str:
        """Note that the configuration reads an environment variable, and return its name."""
        self.variables.setdefault(variable, purpose)
        return variable

    def add_backend(self, name: str, section: Mapping[str, Any]) -> str:
        """Add a backend and return its name. Equal backends are one."""
        for known, other in self.backends.items():
            if other == section:
                return known
        chosen = unique_name(name, self.backends)
        self.backends[chosen] = dict(section)
        return chosen

    def add_route(self, name: str, rule: Mapping[str, Any]) -> str:
        """Add a rule behind the others and return its name."""
        chosen = unique_name(name, {route["name"] for route in self.routes} | {"default"})
        self.routes.append({"name": chosen, **rule})
        return chosen

    def route_by_complexity(self, tiers: Sequence[Any]) -> dict[str, Any]:
        """Return the section `route` for tiers, lightest first. The steps between them divide [0, 1] evenly."""
        usable = [tier for at, tier in enumerate(tiers) if at in (0, len(tiers) - 1) or tier not in _RESERVED]
        if len(usable) < len(tiers):
            self.differences.append(
                "a middle tier cannot be a backend named light or large, so it is left out: name that backend otherwise"
            )
        if len(usable) == 1:
            return {"backend": usable[0]}
        steps = [round(step / len(usable), 2) for step in range(1, len(usable))]
        if len(usable) == 2:
            return {"light": usable[0], "large": usable[1], "escalate_above": steps[0]}
        return {"tiers": usable, "escalate_above": steps}


def unique_name(text: str, taken: Iterable[str]) -> str:
    """Return a name of letters, digits, '.', '_' and '-' that is not taken."""
    plain = _UNSAFE.sub("-", text).strip("-._")[:_MAX_NAME] or "model"
    name, number = plain, 1
    while name in taken:
        number += 1
        name = f"{plain}-{number}"
    return name


def escape_glob(text: str) -> str:
    """Return the glob that matches exactly this text."""
    return _GLOB.sub(lambda match: f"[{match[0]}]", text)


def split_shares(weights: Mapping[str, float]) -> str | dict[str, str]:
    """Return one backend, or backends with shares that add up to 100%."""
    if len(weights) == 1:
        return next(iter(weights))
    whole = sum(weights.values())
    shares = {name: max(0.01, round(100 * weight / whole, 2)) for name, weight in weights.items()}
    largest = max(shares, key=lambda name: shares[name])
    shares[largest] = round(100 - sum(share for name, share in shares.items() if name != largest), 2)
    return {name: f"{share:g}%" for name, share in shares.items()}
