"""The command line: `nearhit serve | demo | check | explain | simulate | doctor | top | cache | policy | jobs | ...`.

Exit code 0 good, 1 fault found, 2 usage."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import orjson
import uvloop

from gateway.adapters.child import ChildFailed
from gateway.admin.explain import Pair
from gateway.commands.asking import FAULT, GOOD, Run, place_given
from gateway.commands.audit import register as register_audit
from gateway.commands.cache import register as register_cache
from gateway.commands.completion import register as register_completion
from gateway.commands.doctor.command import register as register_doctor
from gateway.commands.explain import explain, explain_by_gateway
from gateway.commands.jobs import register as register_jobs
from gateway.commands.json_schema import config_schema, policy_schema
from gateway.commands.keys import register as register_keys
from gateway.commands.policy import register as register_policy
from gateway.commands.policy import warnings_of
from gateway.commands.serve import serve, serve_upstream
from gateway.commands.simulate import register as register_simulate
from gateway.commands.top.command import register as register_top
from gateway.composition.parts import StartFailed, secret
from gateway.demo.errors import DemoUnavailable
from gateway.demo.play import demo
from gateway.demo.triton_environment import default_environment, ensure_triton
from gateway.errors import Refused
from gateway.explaining.explanation import Explanation
from gateway.explaining.pair import checked, explain_by, explain_offline
from gateway.modelkit.fetch import FetchFailed, fetch
from gateway.modelkit.files import ModelCorrupt, ModelMissing, default_model_dir
from gateway.policy.check import check
from gateway.policy_life.expectations import disappointments
from gateway.written.faults import ConfigInvalid
from gateway.written.units import Address, parse_address

USAGE = 2
# What may go wrong for an operator, each with one clear sentence as its text.
EXPECTED = (StartFailed, ChildFailed, ModelMissing, ModelCorrupt, FetchFailed, DemoUnavailable, Refused)


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    command: Run | None = getattr(arguments, "command", None)
    if command is None:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        return command(arguments)
    except ConfigInvalid as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return FAULT
    except EXPECTED as error:
        print(f"nearhit: {error}", file=sys.stderr)
        return FAULT
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nearhit",
        description="Semantic response cache and adaptive routing gateway for model endpoints.",
        epilog="exit codes: 0 good, 1 a fault was found, 2 wrong usage, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"nearhit {version('nearhit')}")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, default=Path("config.yaml"), help="default: %(default)s")
    shared.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, run: Run, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[shared], help=text, description=text)
        command.set_defaults(command=run)
        return command

    served = add("serve", run_serve, "Run the gateway until it is told to stop.")
    served.add_argument("--upstream", metavar="URL", help="no config file: put the gateway before this one endpoint")
    served.add_argument("--listen", metavar="HOST:PORT", type=address, help="instead of server.listen")
    served.add_argument("--admin", metavar="HOST:PORT", type=address, help="instead of server.admin")
    served.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")

    shown = add("demo", run_demo, "Run the gateway before two real models and play a short sample of traffic.")
    shown.add_argument("--triton-env", type=Path, default=None, help="where Triton is or will be installed")
    shown.add_argument("--prepare", action="store_true", help="install what is missing and stop")

    checked = add("check", run_check, "List every fault of the configuration and of all policies at once.")
    checked.add_argument("paths", metavar="PATH", nargs="*", type=Path, help="files or folders; default: all in use")
    checked.add_argument("--admin", metavar="URL", help="ask the gateway with this admin port, too: what only it knows")
    checked.add_argument("--token-env", metavar="VARIABLE", help="where the admin port's token is")

    text = "Say what would become of a request, without sending it; or what is made of two prompts."
    explained = add("explain", run_explain, text)
    explained.add_argument(
        "request", metavar="REQUEST.json", type=Path, nargs="?", help="a body, or {path, headers, body}"
    )
    explained.add_argument("--expect", metavar="BACKEND", help="exit 1 unless this backend or tier is chosen")
    explained.add_argument("--stored", metavar="PROMPT", help="instead of a request: one whose answer is stored,")
    explained.add_argument("--asked", metavar="PROMPT", help="and one that is asked: would that answer be served?")
    explained.add_argument("--route", metavar="NAME", help="of these two; default: the policy's last one")
    explained.add_argument(
        "--admin", metavar="URL", help="ask the gateway with this admin port: what it has learnt, what it predicts"
    )
    explained.add_argument("--token-env", metavar="VARIABLE", help="where the admin port's token is")

    register_cache(commands, shared)
    register_jobs(commands, shared)
    register_keys(commands, shared)
    register_policy(commands, shared)
    register_audit(commands, shared)
    register_simulate(commands, shared)
    register_doctor(commands, shared)
    register_top(commands, shared)
    register_completion(commands, shared, build_parser)

    published = add("schema", run_schema, "Print the JSON Schema of policy files or of config.yaml, for editors.")
    published.add_argument("kind", choices=("policy", "config"))

    model = commands.add_parser("model", help="The embedding model.")
    fetched = model.add_subparsers(title="commands", metavar="COMMAND", required=True).add_parser(
        "fetch", parents=[shared], help="Fetch, export and check the embedding model."
    )
    fetched.add_argument("--model-dir", type=Path, default=None, help="where models are kept")
    fetched.add_argument("--build-env", type=Path, default=None, help="keep the build environment here")
    fetched.set_defaults(command=run_fetch)
    return parser


def address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_serve(arguments: argparse.Namespace) -> int:
    options = {"listen": arguments.listen, "admin": arguments.admin, "log_level": arguments.log_level}
    if arguments.upstream is not None:
        uvloop.run(serve_upstream(arguments.upstream, os.environ, **options))
    else:
        uvloop.run(serve(arguments.config, os.environ, **options))
    return GOOD


def run_demo(arguments: argparse.Namespace) -> int:
    env = arguments.triton_env or default_environment()
    if arguments.prepare:
        ensure_triton(env, progress)
    else:
        uvloop.run(demo(arguments.config, env, os.environ, as_json=arguments.json))
    return GOOD


def run_check(arguments: argparse.Namespace) -> int:
    result = check(arguments.paths, arguments.config, os.environ, disappointments)
    if arguments.admin is not None:
        place = place_given(arguments)
        result = result.warned(asyncio.run(warnings_of(place)))
    if arguments.json:
        print(orjson.dumps(result.as_json()).decode())
        return FAULT if result.faults else GOOD
    for fault in result.faults:
        print(fault)
    for warning in result.warnings:
        print(f"warning: {warning}")
    if not result.faults:
        print(f"{len(result.files)} files, no faults")
    return FAULT if result.faults else GOOD


def run_explain(arguments: argparse.Namespace) -> int:
    of_pair = (arguments.stored, arguments.asked, arguments.route)
    if arguments.request is None or any(value is not None for value in of_pair):
        return run_explain_pair(arguments)
    if arguments.admin is None:
        explanation = asyncio.run(explain(arguments.request, arguments.config, os.environ))
    else:
        place = place_given(arguments)
        explanation = asyncio.run(explain_by_gateway(place, arguments.request))
    print(orjson.dumps(explanation.as_json()).decode() if arguments.json else explanation.as_text())
    return GOOD if arguments.expect is None else _expectation(explanation, arguments.expect)


def run_explain_pair(arguments: argparse.Namespace) -> int:
    if arguments.stored is None or arguments.asked is None or arguments.request or arguments.expect:
        print("usage: nearhit explain REQUEST.json [--expect BACKEND] [--admin URL]", file=sys.stderr)
        print('       nearhit explain --stored "..." --asked "..." [--route NAME] [--admin URL]', file=sys.stderr)
        return USAGE
    pair = checked(Pair(arguments.stored, arguments.asked, arguments.route))
    if arguments.admin is None:
        found = asyncio.run(explain_offline(pair, arguments.config, os.environ))
    else:
        token = secret(os.environ, arguments.token_env, "--token-env")
        found = asyncio.run(explain_by(arguments.admin, token, pair))
    print(orjson.dumps(found.as_json()).decode() if arguments.json else found.as_text())
    return GOOD


def _expectation(explanation: Explanation, expected: str) -> int:
    if expected in (explanation.backend, explanation.tier):
        return GOOD
    print(f"nearhit: expected {expected}, chosen is {explanation.backend}", file=sys.stderr)
    return FAULT


def run_schema(arguments: argparse.Namespace) -> int:
    schema = policy_schema() if arguments.kind == "policy" else config_schema()
    print(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())
    return GOOD


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_fetch(arguments: argparse.Namespace) -> int:
    directory = fetch(arguments.model_dir or default_model_dir(), progress, arguments.build_env)
    print(orjson.dumps({"model": str(directory)}).decode() if arguments.json else f"the model is in {directory}")
    return GOOD
