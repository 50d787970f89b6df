"""`nearhit keys`: API keys of the store of a gateway that runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from gateway.cli.admin_client import AdminClient, WrongUsage, ask_gateway, show_answer
from gateway.cli.output import tell, time_text, warn
from gateway.cli.parser import Command

ONCE = "this is the only time that its text is shown: "
COSTS = ("cost_per_day", "cost_per_month")


KEY = "key_0123456789abcdef"


def register(command: Command) -> None:
    add = partial(command.add_command, asks_gateway=True)
    created = add(
        "create", "Make a key. It is shown once.", run_create,
        "ci --tenant acme --expires 90d", "night --tenant acme --models 'gpt-4o-mini' --cost-per-day '5 USD'",
        about="The key's text is kept nowhere: the store has a digest of it.",
    )  # fmt: skip
    created.add_argument("name", metavar="NAME", help="what it is for, such as ci")
    created.add_argument("--tenant", required=True, metavar="NAME", help="whose answers it may see")
    created.add_argument("--role", choices=("use", "operate", "admin"), default="use", help="default: use")
    _add_terms(created, default="all", ends="never")
    listed = add("list", "List keys, the youngest first.", run_list, "", "--state all --tenant acme")
    listed.add_argument("--tenant", metavar="NAME")
    listed.add_argument("--state", choices=("active", "expired", "revoked", "all"), default="active")
    add("show", "Say what a key may, and since when.", run_show, KEY).add_argument("key", metavar="ID")
    text = "Change what a key may. Its limits are one: what is named replaces them all. All else stays."
    changed = add("change", text, run_change, f"{KEY} --requests 600/min --concurrency 8")
    changed.add_argument("key", metavar="ID")
    changed.add_argument("--name")
    _add_terms(changed, default="as they are", ends="as it is")
    changed.add_argument("--all-models", action="store_true", help="of any model from now on")
    changed.add_argument("--no-limits", action="store_true", help="without limits of its own from now on")
    expired = add("expire", "Have a key end at a time, or never.", run_expire, f"{KEY} --in 7d", f"{KEY} --in off")
    expired.add_argument("key", metavar="ID")
    expired.add_argument("--in", dest="expires", required=True, metavar="DURATION", help="such as 7d; off: never")
    text = "Give a key another text, shown once; both are good for the overlap."
    rotated = add("rotate", text, run_rotate, f"{KEY} --overlap 24h")
    rotated.add_argument("key", metavar="ID")
    rotated.add_argument("--overlap", metavar="DURATION", default="24h", help="0s: not at all; default: %(default)s")
    text = "End a key for good, within a second on every gateway of the store."
    add("revoke", text, run_revoke, KEY).add_argument("key", metavar="ID")


def _add_terms(command: argparse.ArgumentParser, *, default: str, ends: str) -> None:
    command.add_argument("--models", action="append", metavar="GLOB", help=f"again for more; default: {default}")
    text = f"in how long, such as 90d; off: never; default: {ends}"
    command.add_argument("--expires", metavar="DURATION", help=text)
    command.add_argument("--requests", action="append", metavar="RATE", help="such as 600/min; again for more")
    command.add_argument("--tokens", action="append", metavar="RATE", help="such as 100k/min; again for more")
    command.add_argument("--concurrency", type=int, metavar="N", help="calls at once")
    command.add_argument("--cost-per-day", metavar="AMOUNT", help="such as '5 USD'")
    command.add_argument("--cost-per-month", metavar="AMOUNT", help="such as '100 USD'")
    command.add_argument("--then", choices=("refuse", "light"), help="at a cost: refuse, or the lightest model alone")


def run_create(arguments: argparse.Namespace) -> int:
    body = {"name": arguments.name, "tenant": arguments.tenant, "role": arguments.role, **_terms(arguments)}
    return _made(arguments, "/admin/keys", body)


def run_list(arguments: argparse.Namespace) -> int:
    given = {"state": arguments.state, "tenant": arguments.tenant}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return show_answer(arguments, lambda admin: admin.get(f"/admin/keys?{query}"), list_text)


def run_show(arguments: argparse.Namespace) -> int:
    return show_answer(arguments, lambda admin: admin.get(_path(arguments)), show_text)


def run_change(arguments: argparse.Namespace) -> int:
    body = _terms(arguments)
    if arguments.name is not None:
        body["name"] = arguments.name
    if arguments.all_models:
        body["models"] = []
    if arguments.no_limits:
        body["limits"] = []
    if not body:
        raise WrongUsage("nothing is to change: expected an option such as --models or --expires")
    return _posted(arguments, "", body, show_text)


def run_expire(arguments: argparse.Namespace) -> int:
    return _posted(arguments, "", {"expires": arguments.expires}, show_text)


def run_rotate(arguments: argparse.Namespace) -> int:
    return _made(arguments, f"{_path(arguments)}/rotate", {"overlap": arguments.overlap})


def run_revoke(arguments: argparse.Namespace) -> int:
    def text(said: dict[str, Any]) -> str:
        unknown = "" if said["durable"] else "; the store does not say that this has reached its disk"
        return f"{said['id']} ({said['name']}) is revoked: within a second on every gateway of the store{unknown}"

    return _posted(arguments, "/revoke", {}, text)


def _made(arguments: argparse.Namespace, path: str, body: dict[str, Any]) -> int:
    """The text alone on standard output, so that a variable can take it; what is to be said of it on the other one."""
    said = ask_gateway(arguments, lambda admin: admin.post(path, body))
    if not arguments.json:
        warn(about_text(said))
    return tell(arguments, said, said["key"])


def _posted(
    arguments: argparse.Namespace, what: str, body: dict[str, Any], text: Callable[[dict[str, Any]], str]
) -> int:
    async def post(admin: AdminClient) -> dict[str, Any]:
        return await admin.post(_path(arguments) + what, body)

    return show_answer(arguments, post, text)


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
    terms = {"models": arguments.models, "expires": arguments.expires, "limits": [rule] if rule else None}
    return {name: value for name, value in terms.items() if value is not None}


def about_text(said: dict[str, Any]) -> str:
    warning = f"\nwarning: {said['warning']}" if "warning" in said else ""
    return f"{ONCE}{said['id']}, {_of(said)}{warning}"


def list_text(said: dict[str, Any]) -> str:
    if not said["keys"]:
        return "there are none"
    rows = [
        f"{key['id']}  {key['name']:<20}  {key['tenant']:<16}  {key['role']:<7}  {key['state']:<7}  "
        f"...{key['secrets'][-1]['hint']}  {_ends(key)}"
        for key in said["keys"]
    ]
    return "\n".join(rows)


def show_text(said: dict[str, Any]) -> str:
    lines = [f"{said['id']}  {_of(said)}, {said['state']}", f"made             {time_text(said['created'])}"]
    lines[-1] += f" by {said['created_by']}"
    lines.append(f"ends             {_ends(said)}")
    lines.append(f"models           {', '.join(said['models']) or 'all'}")
    lines += [f"limits           {_rule_text(rule)}" for rule in said["limits"]] or ["limits           none of its own"]
    for secret in said["secrets"]:
        ends = "" if secret["ends"] is None else f", good until {time_text(secret['ends'])}"
        lines.append(f"text             ...{secret['hint']} of {time_text(secret['created'])}{ends}")
    return "\n".join(lines)


def _rule_text(rule: dict[str, Any]) -> str:
    """As it is written in a policy, without its brackets."""
    parts = []
    for name, value in rule.items():
        if isinstance(value, dict):
            parts.append(" ".join([name, *(f"{key} {item}" for key, item in value.items())]))
        else:
            parts.append(f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return ", ".join(parts)


def _of(said: dict[str, Any]) -> str:
    return f"{said['name']} of tenant {said['tenant']}, role {said['role']}"


def _ends(said: dict[str, Any]) -> str:
    if said["revoked"] is not None:
        return f"revoked {time_text(said['revoked'])}"
    return "never" if said["expires"] is None else time_text(said["expires"])
