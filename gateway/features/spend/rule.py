"""The section `spend` of a route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from gateway.config.fields import Text, WebhookUrl, optional_section
from gateway.config.schema_types import ON_OR_OFF, SWITCH, or_schemas
from gateway.config.units import Switch
from gateway.config.validation import Section
from gateway.features.spend.rows import Party

MAX_BUDGETS = 1_000  # of the tenants of a route, and of its keys


Dollars = Annotated[float, Field(gt=0, le=1e9, examples=[500])]


class SpendRule(Section):
    """The books of a route's calls."""

    users: Switch = False
    """`on`: book the end users that requests name, too. Their names are then in the store. Exact hits take the longer
    path, since the user is in the body."""
    budget: Dollars | None = None
    """US dollars that the calls of the route are to cost in a calendar month (UTC), on all gateways. It refuses
    nothing: `limits` do. Without it, no alerts."""
    tenant_budgets: Annotated[Mapping[Text, Dollars], Field(max_length=MAX_BUDGETS)] = Field(default={})
    """Budgets of single tenants on the route, by name, such as `{acme: 200}`."""
    key_budgets: Annotated[Mapping[Text, Dollars], Field(max_length=MAX_BUDGETS)] = Field(default={})
    """Budgets of single API keys on the route, by name, such as `{ci: 20}`."""
    webhook: WebhookUrl | None = None
    """The URL that gets an alert when the costs reach 50 %, 80 % and 100 % of a budget, such as one of Slack."""
    metrics: Switch = False
    """`on`: count the spend of each tenant in the metrics, too: of the first 100 tenants, and then of `others`."""

    @model_validator(mode="after")
    def _webhook_needs_a_budget(self) -> Self:
        if self.webhook is not None and not (self.budget or self.tenant_budgets or self.key_budgets):
            raise ValueError("webhook: expected budget, too, such as {budget: 500, webhook: https://...}")
        return self

    def budgets(self, route: str) -> Mapping[Party, float]:
        """Return the budgets of a route with this rule, in dollars."""
        named = {"tenant": self.tenant_budgets, "key": self.key_budgets}
        found = {} if self.budget is None else {Party(route): self.budget}
        return found | {Party(route, kind, name): one for kind, of in named.items() for name, one in of.items()}


SpendForm = Annotated[
    SpendRule | None,
    BeforeValidator(optional_section(SpendRule, "{users: on, budget: 500}")),
    or_schemas(SWITCH),
    ON_OR_OFF,
]
SUMMARY = "`on`: book who spends how much on which model, and what hits save. Or `{users: on, budget: 500}`."
