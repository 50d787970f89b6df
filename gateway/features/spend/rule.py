"""The section `spend` of a route."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.config.fields import Text, optional_section
from gateway.config.schema_types import ON_OR_OFF, SWITCH, or_schemas
from gateway.config.units import Switch
from gateway.config.validation import Section


def _check_webhook(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("expected a URL such as https://hooks.example/alerts")
    return url


Webhook = Annotated[Text, AfterValidator(_check_webhook), Field(examples=["https://hooks.example/alerts"])]


class SpendRule(Section):
    """The books of a route's calls."""

    users: Switch = False
    """`on`: book the end users that requests name, too. Their names are then in the store. Exact hits take the longer
    path, since the user is in the body."""
    budget: Annotated[float, Field(gt=0, le=1e9, examples=[500])] | None = None
    """US dollars that the calls of the route are to cost in a calendar month (UTC), on all gateways. It refuses
    nothing: `limits` do. Without it, no alerts."""
    webhook: Webhook | None = None
    """The URL that gets an alert when the costs reach 50 %, 80 % and 100 % of `budget`, such as one of Slack."""
    metrics: Switch = False
    """`on`: count the spend of each tenant in the metrics, too: of the first 100 tenants, and then of `others`."""

    @model_validator(mode="after")
    def _webhook_needs_a_budget(self) -> Self:
        if self.webhook is not None and self.budget is None:
            raise ValueError("webhook: expected budget, too, such as {budget: 500, webhook: https://...}")
        return self


SpendForm = Annotated[
    SpendRule | None,
    BeforeValidator(optional_section(SpendRule, "{users: on, budget: 500}")),
    or_schemas(SWITCH),
    ON_OR_OFF,
]
SUMMARY = "`on`: book who spends how much on which model, and what hits save. Or `{users: on, budget: 500}`."
