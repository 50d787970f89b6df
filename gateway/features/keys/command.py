"""`nearhit keys` manages the API keys in the store of a running gateway."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from gateway.cli.admin_client import AdminClient, call_gateway, print_response
from gateway.cli.output import WrongUsage, print_result, print_warning, time_text
from gateway.cli.parser import Command

SHOWN_ONCE = "the key is shown only this once: "
COSTS = ("cost_per_day", "cost_per_month")


KEY = "key_0123456789abcdef"


def register(command: Command) -> None:
    add = partial(command.add_command, asks_gateway=True)
    created = add(
        "create", "Create a key. It is shown only once.", run_create,
        "ci --tenant acme --expires 90d", "night --tenant acme --models 'gpt-4o-mini' --cost-per-day '5 USD'",
        about="The key's text is not stored: the store has only a digest of it.",
    )  # fmt: skip
    created.add_argument("name", metavar="NAME", help="purpose of the key, such as ci")
    created.add_argument(
        "--tenant", required=True, metavar="NAME", help="tenant of the key: it sees only that tenant's answers"
    )
    created.add_argument("--role", choices=("use", "operate", "admin"), default="use", help="default: use")
    _add_terms(created, default="all", ends="never")
    listed = add("list", "List keys, newest first.", run_list, "", "--state all --tenant acme")
    listed.add_argument("--tenant", metavar="NAME")
    listed.add_argument("--state", choices=("active", "expired", "revoked", "all"), default="active")
    add("show", "Show the permissions, limits and dates of a key.", run_show, KEY).add_argument("key", metavar="ID")
    text = "Change a key. Limit options replace all its limits; other settings stay."
    changed = add("change", text, run_change, f"{KEY} --requests 600/min --concurrency 8")
    changed.add_argument("key", metavar="ID")
    changed.add_argument("--name")
    _add_terms(changed, default="unchanged", ends="unchanged")
    changed.add_argument("--all-models", action="store_true", help="allow every model")
    changed.add_argument("--no-limits", action="store_true", help="remove the limits of the key")
    expired = add("expire", "Change the expiry of a key.", run_expire, f"{KEY} --in 7d", f"{KEY} --in off")
    expired.add_argument("key", metavar="ID")
    expired.add_argument(
        "--in", dest="expires", required=True, metavar="DURATION", help="lifetime from now, such as 7d; off: no expiry"
    )
    text = "Replace a key's text, shown once; the old one stays valid for the overlap."
    rotated = add("rotate", text, run_rotate, f"{KEY} --overlap 24h")
    rotated.add_argument("key", metavar="ID")
    rotated.add_argument(
        "--overlap", metavar="DURATION", default="24h", help="0s: the old text ends at once; default: %(default)s"
    )
    text = "Revoke a key permanently, within a second on every gateway of the store."
    add("revoke", text, run_revoke, KEY).add_argument("key", metavar="ID")


def _add_terms(command: argparse.ArgumentParser, *, default: str, ends: str) -> None:
    command.add_argument(
        "--models", action="append", metavar="GLOB", help=f"models that the key may use; repeatable; default: {default}"
    )
    text = f"lifetime from now, such as 90d; off: no expiry; default: {ends}"
    command.add_argument("--expires", metavar="DURATION", help=text)
    access = "read-write" if default == "all" else default
    command.add_argument(
        "--cache",
        choices=("read-write", "read-only"),
        help=f"read-only: the key gets hits and stores nothing; default: {access}",
    )
    command.add_argument("--requests", action="append", metavar="RATE", help="such as 600/min; repeatable")
    command.add_argument("--tokens", action="append", metavar="RATE", help="such as 100k/min; repeatable")
    command.add_argument("--concurrency", type=int, metavar="N", help="limit of concurrent calls")
    command.add_argument("--cost-per-day", metavar="AMOUNT", help="daily cost limit, such as '5 USD'")
    command.add_argument("--cost-per-month", metavar="AMOUNT", help="monthly cost limit, such as '100 USD'")
    command.add_argument(
        "--then", choices=("refuse", "light"), help="at a cost limit: refuse, or use only the lightest model"
    )


def run_create(arguments: argparse.Namespace) -> int:
    body = {"name": arguments.name, "tenant": arguments.tenant, "role": arguments.role, **_terms(arguments)}
    return _create(arguments, "/admin/keys", body)


def run_list(arguments: argparse.Namespace) -> int:
    given = {"state": arguments.state, "tenant": arguments.tenant}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return print_response(arguments, lambda admin: admin.get(f"/admin/keys?{query}"), list_text)


def run_show(arguments: argparse.Namespace) -> int:
    return print_response(arguments, lambda admin: admin.get(_path(arguments)), show_text)


def run_change(arguments: argparse.Namespace) -> int:
    body = _terms(arguments)
    if arguments.name is not None:
        body["name"] = arguments.name
    if arguments.all_models:
        body["models"] = []
    if arguments.no_limits:
        body["limits"] = []
    if not body:
        raise WrongUsage("nothing to change: expected an option such as --models or --expires")
    return _post(arguments, "", body, show_text)


def run_expire(arguments: argparse.Namespace) -> int:
    return _post(arguments, "", {"expires": arguments.expires}, show_text)


def run_rotate(arguments: argparse.Namespace) -> int:
    return _create(arguments, f"{_path(arguments)}/rotate", {"overlap": arguments.overlap})


def run_revoke(arguments: argparse.Namespace) -> int:
    def text(reply: dict[str, Any]) -> str:
        unknown = "" if reply["durable"] else "; the store has not confirmed that this is on disk"
        return f"{reply['id']} ({reply['name']}) is revoked, within a second on every gateway of the store{unknown}"

    return _post(arguments, "/revoke", {}, text)


def _create(arguments: argparse.Namespace, path: str, body: dict[str, Any]) -> int:
    """Print only the key on standard output, so that a variable can take it, and notes on standard error."""
    reply = call_gateway(arguments, lambda admin: admin.post(path, body))
    if not arguments.json:
        print_warning(warning_text(reply))
    return print_result(arguments, reply, reply["key"])


def _post(arguments: argparse.Namespace, what: str, body: dict[str, Any], text: Callable[[dict[str, Any]], str]) -> int:
    async def post(admin: AdminClient) -> dict[str, Any]:
        return await admin.post(_path(arguments) + what, body)

    return print_response(arguments, post, text)


def _path(arguments: argparse.Namespace) -> str:
    return f"/admin/keys/{quote(arguments.key, safe='')}"


def _terms(arguments: argparse.Namespace) -> dict[str, Any]:
    rule = {name: getattr(arguments, name) for name in ("requests", "tokens", "concurrency")}
    rule = {name: value for name, value in rule.items() if value is not None}
    cost = {name.removeprefix("cost_"): value for name in COSTS if (value := getattr(arguments, name)) is not None}
    if arguments.then is not None:
        cost["then"] = arguments.then
    if cost:
        rule["cost"] = cost
    terms = {
        "models": arguments.models,
        "expires": arguments.expires,
        "limits": [rule] if rule else None,
        "cache": arguments.cache,
    }
    return {name: value for name, value in terms.items() if value is not None}


def warning_text(reply: dict[str, Any]) -> str:
    warning = f"\nwarning: {reply['warning']}" if "warning" in reply else ""
    return f"{SHOWN_ONCE}{reply['id']}, {_owner_text(reply)}{warning}"


def list_text(reply: dict[str, Any]) -> str:
    if not reply["keys"]:
        return "no keys"
    rows = [
        f"{key['id']}  {key['name']:<20}  {key['tenant']:<16}  {key['role']:<7}  {key['state']:<7}  "
        f"...{key['secrets'][-1]['hint']}  {_expiry_text(key)}"
        for key in reply["keys"]
    ]
    return "\n".join(rows)


def show_text(reply: dict[str, Any]) -> str:
    lines = [
        f"{reply['id']}  {_owner_text(reply)}, {reply['state']}",
        f"created          {time_text(reply['created'])}",
    ]
    lines[-1] += f" by {reply['created_by']}"
    lines.append(f"expires          {_expiry_text(reply)}")
    lines.append(f"models           {', '.join(reply['models']) or 'all'}")
    lines.append(f"cache            {reply['cache']}")
    lines += [f"limits           {_rule_text(rule)}" for rule in reply["limits"]] or [
        "limits           none for this key"
    ]
    for secret in reply["secrets"]:
        ends = "" if secret["ends"] is None else f", valid until {time_text(secret['ends'])}"
        lines.append(f"text             ...{secret['hint']} created {time_text(secret['created'])}{ends}")
    return "\n".join(lines)


def _rule_text(rule: dict[str, Any]) -> str:
    """Return the rule as a policy writes it, without brackets."""
    parts = []
    for name, value in rule.items():
        if isinstance(value, dict):
            parts.append(" ".join([name, *(f"{key} {item}" for key, item in value.items())]))
        else:
            parts.append(f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return ", ".join(parts)


def _owner_text(reply: dict[str, Any]) -> str:
    return f"{reply['name']} of tenant {reply['tenant']}, role {reply['role']}"


def _expiry_text(reply: dict[str, Any]) -> str:
    if reply["revoked"] is not None:
        return f"revoked {time_text(reply['revoked'])}"
    return "never" if reply["expires"] is None else time_text(reply["expires"])
