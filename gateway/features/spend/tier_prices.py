"""The price that the best model of a route would have asked for the calls of its lighter ones."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.policy.model import Target
from gateway.config.policy.parameters import untuned
from gateway.features.spend.figures import Figures
from gateway.features.spend.rows import NANOS
from gateway.messages import Provenance
from gateway.prices import UNPRICED, Tariff, Tokens


class TierPrices:
    """Counts what the choice among the models of a route saves. A backend of the best tier is never a light one."""

    def __init__(self, target: Target, prices: Mapping[str, Tariff]) -> None:
        *lighter, best = ([untuned(name) for name in (tier.backend, *tier.members)] for tier in target.tiers)
        self._light = frozenset(name for names in lighter for name in names if name not in best)
        self._best = prices.get(best[0], UNPRICED)
        self._best_tier = target.tiers[-1].name
        self._prices = prices

    def is_light(self, backend: str) -> bool:
        return untuned(backend) in self._light

    def compare(self, figures: Figures, model: str, backend: str, tokens: Tokens, sign: int = 1) -> None:
        """Count a call of a lighter model, or with a `sign` of -1 take it back."""
        mine, best = self._prices.get(untuned(backend), UNPRICED).price(model), self._best.price(model)
        if mine.is_stated and best.is_stated:
            figures.routed_nanos += sign * round((best.of(*tokens) - mine.of(*tokens)) * NANOS)
        else:
            figures.light_unpriced += sign

    def count(self, figures: Figures, model: str, provenance: Provenance) -> None:
        """Count an answer of a tier. Its other calls, such as a rejected light answer, have saved nothing."""
        is_best = provenance.tier == self._best_tier
        figures.large += is_best
        figures.light += not is_best
        tried = False
        for usage in provenance.other_usage:
            price = self._prices.get(untuned(usage.backend), UNPRICED).price(model)
            figures.trial_nanos += round(price.of(*usage.tokens) * NANOS)
            if self.is_light(usage.backend):
                tried = True
                self.compare(figures, model, usage.backend, usage.tokens, -1)
        figures.trials_failed += is_best and tried
