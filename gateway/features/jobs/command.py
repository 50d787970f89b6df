"""`nearhit jobs` manages the jobs of a running gateway."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from gateway.cli.admin_client import print_response
from gateway.cli.output import WrongUsage, time_text
from gateway.cli.parser import Command, Run

JOB = "job_0123456789abcdef0123456789abcdef"


def register(command: Command) -> None:
    add = partial(command.add_command, asks_gateway=True)
    text = "Count the jobs by state, and list some."
    listed = add("list", text, run_list, "", "--state dead --top 10")
    listed.add_argument("--state", choices=("active", "dead", "finished"), default="active", help="default: active")
    listed.add_argument("--top", type=int, default=50, metavar="N", help="list the N newest; default: %(default)s")
    text = "Show the state of a job, without its request and its answer."
    add("show", text, run_show, JOB).add_argument("job", metavar="ID")
    for name, text in (("retry", "Try dead jobs again."), ("drop", "Drop dead jobs permanently.")):
        each = add(name, text, run_action(name), JOB, "--all")
        each.add_argument("job", metavar="ID", nargs="?")
        each.add_argument("--all", action="store_true", help="all dead jobs, at most 1000 per call")


def run_list(arguments: argparse.Namespace) -> int:
    query = urlencode({"state": arguments.state, "top": arguments.top})
    return print_response(arguments, lambda admin: admin.get(f"/admin/jobs?{query}"), list_text)


def run_show(arguments: argparse.Namespace) -> int:
    return print_response(arguments, lambda admin: admin.get(f"/admin/jobs/{quote(arguments.job, safe='')}"), show_text)


def run_action(name: str) -> Run:
    def run(arguments: argparse.Namespace) -> int:
        if arguments.all == (arguments.job is not None):
            raise WrongUsage("expected the id of a dead job, or --all")
        body = {"all": True} if arguments.all else {"job": arguments.job}
        done = "queued again" if name == "retry" else "dropped"
        return print_response(
            arguments, lambda admin: admin.post(f"/admin/jobs/{name}", body), lambda reply: f"{reply['jobs']} {done}"
        )

    return run


def list_text(reply: dict[str, Any]) -> str:
    counts = reply["counts"]
    head = (
        f"{counts['queued']} queued, {counts['running']} running, {counts['dead']} dead, "
        f"{counts['webhooks']} webhooks to send; the oldest job has waited {counts['oldest_s']:.0f} s"
    )
    rows = [
        f"{one['id']}  {one['status']:<9}  {time_text(one['created_at'])}  {one['attempts']:>3}  {one['tenant']:<12}  "
        f"{one.get('error', '')}".rstrip()
        for one in reply["jobs"]
    ]
    return "\n".join([head, *rows])


def show_text(reply: dict[str, Any]) -> str:
    times = ("created_at", "started_at", "finished_at")
    shown = {name: time_text(value) if name in times and value else value for name, value in reply.items()}
    return "\n".join(f"{name:<16}{value}" for name, value in shown.items() if value is not None)
