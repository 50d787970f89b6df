"""Keys, limits for clients and budgets: `general_settings` and the key settings of `litellm_settings`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gateway.features.importing.document import Setting
from gateway.features.importing.draft import Draft

MASTER_KEY = "LITELLM_MASTER_KEY"

_BUDGET_PERIOD = re.compile(r"(\d{1,4})(s|m|h|d|w|mo)")
_DAYS = {"s": 1 / 86_400, "m": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "mo": 30.0}


def read_access(general: Setting, draft: Draft) -> None:
    """Fill in the section `auth` from the master key."""
    master = general.key("master_key")
    if not master.is_set:
        draft.differences.append(
            "there is no master_key, so auth.mode is passthrough: anybody may call the models, and the credentials of "
            "each client separate its stored answers"
        )
        draft.section("auth")["mode"] = "passthrough"
        return
    variable = master.variable()
    hint = "" if variable else f"; put it into the variable {MASTER_KEY}, because nearhit keeps no keys in files"
    master.changed(
        "auth.mode: keys, and auth.admin_token_env: it opens the admin port and calls no models; clients need keys of "
        f"their own (nearhit keys create NAME --tenant TENANT){hint}"
    )
    draft.section("auth").update(
        mode="keys", admin_token_env=draft.need(variable or MASTER_KEY, "token of the admin port")
    )
    for key in ("database_url", "store_model_in_db"):
        general.key(key).missing(
            "keys, teams and models of the database are not read: create keys with nearhit keys create, and list the "
            "models in the file before the import"
        )
    inflight = general.key("global_max_parallel_requests")
    if (count := inflight.whole(1, 1_000_000)) is not None:
        inflight.changed(
            "server.max_inflight: requests that wait for the store, an embedding or a backend; beyond it 503"
        )
        draft.section("server")["max_inflight"] = count


def client_limits(settings: Setting) -> list[dict[str, Any]]:
    """Return the limits of every route for keys and users. `settings` is `litellm_settings`."""
    limit: dict[str, Any] = {"per": "key"}
    for section in ("default_key_generate_params", "upperbound_key_generate_params"):
        for key, value in _key_limit(settings.key(section)):
            limit.setdefault(key, value)
    limits = [limit] if len(limit) > 1 else []
    budget = settings.key("max_end_user_budget")
    if (amount := budget.number()) is not None:
        budget.missing(
            f"it never resets, and caps of nearhit hold for a day or a month: limits with per: user, such as cost: "
            f"{{per_month: {amount:g} USD}}"
        )
    return limits


def _key_limit(section: Setting) -> Iterator[tuple[str, Any]]:
    every = "a limit per key on each route, for all keys alike; `nearhit keys create` sets one for a single key"
    for key, ours in (("rpm_limit", "requests"), ("tpm_limit", "tokens")):
        if (rate := section.key(key).whole(1, 10**9)) is not None:
            section.key(key).changed(f"{ours}: {rate}/min: {every}")
            yield ours, f"{rate}/min"
    if (count := section.key("max_parallel_requests").whole(1, 1_000_000)) is not None:
        section.key("max_parallel_requests").changed(f"concurrency: {count}: {every}")
        yield "concurrency", count
    if (cost := read_budget(section.key("max_budget"), section.key("budget_duration"), every)) is not None:
        yield "cost", cost


def read_budget(budget: Setting, duration: Setting, where: str) -> dict[str, str] | None:
    """Return a cap on cost for a budget with its duration, and report both. Return None if there is
    no such cap."""
    amount = budget.number()
    if not amount:
        return None
    match = _BUDGET_PERIOD.fullmatch(str(duration.value)) if duration.is_set else None
    days = int(match[1]) * _DAYS[match[2]] if match else None
    period = {1.0: "per_day", 30.0: "per_month"}.get(days or 0.0)
    if period is None or amount < 1e-6:
        daily = f", such as per_day: {amount / days:.6g} USD" if days else ""
        budget.missing(f"caps hold for a UTC day or a UTC month; choose one as limits with cost{daily}")
        duration.missing("caps hold for a UTC day or a UTC month")
        return None
    amount_text = f"{amount:.6f}".rstrip("0").rstrip(".")
    budget.changed(f"cost: {{{period}: {amount_text} USD}}, for the UTC day or month: {where}")
    duration.changed(f"cost.{period}: it begins anew with the UTC day or month")
    return {period: f"{amount_text} USD"}
