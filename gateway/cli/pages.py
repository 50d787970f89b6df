"""What help says of a command beyond its options: one page for each that can be run, and none for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GATEWAY = "It asks the admin port of a gateway that runs."
FILES = "It reads config.yaml and the policies; a gateway need not run."


@dataclass(frozen=True, slots=True)
class Page:
    """`about`: paragraphs. `examples`: command lines. `fault`: what exit code 1 says, where that is
    more than the usual."""

    about: str
    examples: tuple[str, ...]
    fault: str = ""


PAGES: Mapping[str, Page] = {
    "serve": Page(
        "Serves the configuration until SIGINT or SIGTERM; requests in flight are then given server.drain_timeout. "
        "Saved policies are in force at once; SIGHUP has them read again. With --upstream there is no file: one "
        "endpoint, both caches on.\n\nA line a request goes to standard error, as JSON; --log-level warning leaves "
        "them out.",
        ("nearhit serve", "nearhit serve --upstream https://api.openai.com/v1 --listen 127.0.0.1:8080"),
    ),
    "stub": Page(
        "An endpoint that answers as OpenAI's chat completions do, streams included, without a model: the answer names "
        "the model that was asked and repeats the question. For trying policies, limits and clients; what it says is "
        "worth nothing. It keeps nothing, and listens on this machine unless told otherwise.",
        ("nearhit stub", "nearhit stub --listen 127.0.0.1:9001 --delay 300ms"),
    ),
    "demo": Page(
        "Installs a real Triton server where there is none, makes two small models over this documentation, starts "
        "both and the gateway, asks a few questions, and stays until Ctrl-C.",
        ("nearhit demo", "nearhit demo --prepare --triton-env .venv-triton"),
    ),
    "check": Page(
        f"{FILES} Every fault has its file, line and path of keys. Warnings are of what will run, though hardly as it "
        "was meant. The policies' own expectations (`tests:`) are run.",
        ("nearhit check", "nearhit check policies/default.yaml", "nearhit check --admin http://127.0.0.1:9090"),
        "there are faults; warnings alone are 0",
    ),
    "explain": Page(
        f"{FILES} With --admin the gateway there is asked, which knows what it has learnt and what its backends are "
        "predicted to take. Nothing is sent to a backend.\n\nREQUEST.json is a body, or an object with path, headers "
        "and body. --stored and --asked ask instead whether the answer to one prompt would be served for another.",
        (
            "nearhit explain request.json",
            "nearhit explain request.json --expect light",
            "nearhit explain request.json --steps",
            "nearhit explain --stored 'What is a scope?' --asked 'what is a scope'",
        ),
        "another backend than --expect is chosen, or the request has a fault",
    ),
    "simulate": Page(
        "Puts the traffic that routes with `record: on` have kept through the gateway's own decisions, once under the "
        "policy in force and once under the other one. Nothing is sent anywhere.",
        (
            "nearhit simulate --policy new.yaml --traffic last-24h",
            "nearhit simulate --policy policies.new --traffic last-90m --json",
        ),
        "the policy has faults, or there is no traffic to replay",
    ),
    "capacity": Page(
        "From unit costs that were measured, with the formula of each line; what was not measured is marked, and "
        "prices are assumptions until you give yours. It reads neither configuration nor policies, and asks nobody. "
        "How far the formulas are from gateways that run is in docs/scaling.md.",
        (
            "nearhit capacity --rps 50000 --hit-rate 0.4 --entries 1e8",
            "nearhit capacity --rps 200 --hit-rate 30% --entries 500000 --models elsewhere --prices prices.yaml --json",
        ),
        "a file of costs or prices has faults",
    ),
    "cache stats": Page(
        f"{GATEWAY} Counts are from its start on.", ("nearhit cache stats", "nearhit cache stats --json")
    ),
    "cache purge": Page(
        f"{GATEWAY} All conditions that are given must hold; none at all is refused. When it says that it is done, "
        "nothing of what was meant is served any more, by any gateway on the store.",
        (
            "nearhit cache purge --tag doc-17 --dry-run",
            "nearhit cache purge --route support --older-than 1d",
            "nearhit cache purge --like 'How do I reset my password?'",
        ),
        "nothing was removed, or not all of it; the sentence says which",
    ),
    "cache export": Page(
        f"{GATEWAY} One entry a line, question and answer in it: keep the file as you keep those. A file is there "
        "whole or not at all.",
        (
            "nearhit cache export --out answers.jsonl",
            "nearhit cache export --format chat --route support --out training.jsonl",
        ),
    ),
    "cache import": Page(
        f"{GATEWAY} Each line is checked as if the answer had just been fetched; lines that are refused are named, "
        "and the others are in.",
        ("nearhit cache import answers.jsonl",),
        "lines were refused, or nothing could be imported",
    ),
    "cache warm": Page(
        "Sends prompts through the data port like any client's, so that tiers, limits and policies hold. A line is a "
        "JSON string, or a whole body.",
        ("nearhit cache warm prompts.jsonl --rate 5/s",),
        "some prompts were not answered",
    ),
    "jobs list": Page(GATEWAY, ("nearhit jobs list", "nearhit jobs list --state dead --top 10")),
    "jobs show": Page(GATEWAY, ("nearhit jobs show job_0123456789abcdef0123456789abcdef",)),
    "jobs retry": Page(
        GATEWAY, ("nearhit jobs retry job_0123456789abcdef0123456789abcdef", "nearhit jobs retry --all")
    ),
    "jobs drop": Page(GATEWAY, ("nearhit jobs drop job_0123456789abcdef0123456789abcdef", "nearhit jobs drop --all")),
    "keys create": Page(
        f"{GATEWAY} The key's text is shown once, and kept nowhere: the store has a digest of it.",
        (
            "nearhit keys create ci --tenant acme --expires 90d",
            "nearhit keys create night --tenant acme --models 'gpt-4o-mini' --cost-per-day '5 USD'",
        ),
    ),
    "keys list": Page(GATEWAY, ("nearhit keys list", "nearhit keys list --state all --tenant acme")),
    "keys show": Page(GATEWAY, ("nearhit keys show key_0123456789abcdef",)),
    "keys change": Page(
        f"{GATEWAY} What is not named stays.",
        ("nearhit keys change key_0123456789abcdef --requests 600/min --concurrency 8",),
    ),
    "keys expire": Page(
        GATEWAY,
        ("nearhit keys expire key_0123456789abcdef --in 7d", "nearhit keys expire key_0123456789abcdef --in off"),
    ),
    "keys rotate": Page(
        f"{GATEWAY} Both texts are good for the overlap; the new one is shown once.",
        ("nearhit keys rotate key_0123456789abcdef --overlap 24h",),
    ),
    "keys revoke": Page(
        f"{GATEWAY} Within a second it is refused by every gateway on the store.",
        ("nearhit keys revoke key_0123456789abcdef",),
    ),
    "policy show": Page(GATEWAY, ("nearhit policy show",)),
    "policy validate": Page(
        f"{GATEWAY} With --offline it reads the files of --config instead. FILE is taken as the new content of one "
        "policy file, beside the others.",
        ("nearhit policy validate support.yaml", "nearhit policy validate new.yaml --as default.yaml --offline"),
        "the file has faults, or the gateway cannot be asked",
    ),
    "policy apply": Page(
        f"{GATEWAY} The file is checked together with the others, written to the gateway's policies and put in force, "
        "or nothing is changed.",
        (
            "nearhit policy apply support.yaml --comment 'six hours'",
            "nearhit policy apply new.yaml --as default.yaml --if-match 0a1b2c3d4e5f",
        ),
        "the file has faults, or another policy is in force than --if-match names",
    ),
    "policy history": Page(GATEWAY, ("nearhit policy history", "nearhit policy history --limit 5")),
    "policy diff": Page(GATEWAY, ("nearhit policy diff", "nearhit policy diff 16 17")),
    "policy rollback": Page(
        f"{GATEWAY} The files of that version become a new version; files that it had not are removed.",
        ("nearhit policy rollback", "nearhit policy rollback 16 --comment 'hits were wrong'"),
    ),
    "audit": Page(GATEWAY, ("nearhit audit", "nearhit audit --source file --limit 200")),
    "doctor": Page(
        "Whether a gateway runs or not, from the same folder and with the same environment as it. Each finding says "
        "what was found and, where something is to be done, what. Takes some seconds, at most 15 for what asks others.",
        ("nearhit doctor", "nearhit doctor --upstream https://api.openai.com/v1"),
        "there is a fault; warnings alone are 0",
    ),
    "top": Page(
        f"{GATEWAY} Rates and latencies are of the last 10 s; with --once they are counted from its start. With --json "
        "an object a refresh, one a line. Colours on a terminal, unless NO_COLOR is set.",
        ("nearhit top", "nearhit top --once", "nearhit top --json --refresh 5"),
    ),
    "restart": Page(
        "Of a gateway with server.workers above 1, on the same machine: its supervisor is told, and this returns when "
        "every worker is a new process. server.listen, server.admin, server.workers and the embedded store stay as "
        "they are until the supervisor itself is started anew.",
        ("nearhit restart", "nearhit restart --config /etc/nearhit/config.yaml"),
        "a new worker did not come to listen, and the old ones stay",
    ),
    "completion": Page(
        "A script that the shell reads once, when it starts.",
        (
            "nearhit completion bash > /etc/bash_completion.d/nearhit",
            "nearhit completion zsh > /usr/local/share/zsh/site-functions/_nearhit",
            "nearhit completion fish > ~/.config/fish/completions/nearhit.fish",
        ),
    ),
    "schema": Page(
        "For editors that complete and check YAML by it. The same files are in docs/schema.",
        ("nearhit schema policy > policy.schema.json", "nearhit schema config"),
    ),
    "index migrate": Page(
        "Reads the stored vectors, writes those that the index of index.adapter lacks, from faiss to milvus and back, "
        "takes out what the store does not have, and compares the counts. What is there is not written again: where it "
        "was stopped, run it again. With the embedded store, with faiss or with a Milvus Lite file the gateway has to "
        "be stopped. (Faiss also fills itself at a gateway's start.)",
        ("nearhit index migrate", "nearhit index migrate --config next.yaml --json"),
    ),
    "model triton": Page(
        "Makes float32 ONNX of the embedding model and of the verifier's cross-encoder, in an environment of its own "
        "as `model fetch` does, and puts each into the repository as its next version, unless the newest is the same. "
        "What config.pbtxt says already stays.",
        ("nearhit model triton models", "nearhit model triton models --cpu --build-env .venv-build"),
    ),
    "model fetch": Page(
        "Fetches the published weights, exports them to int8 ONNX in an environment of its own (1.6 GB while it "
        "lasts, a minute), and compares the result with the original. At once where the model is there and unchanged.",
        ("nearhit model fetch", "nearhit model fetch --build-env .venv-build"),
    ),
    "distill": Page(
        "Reads texts and the labels that a large model gave them, from a .csv, a .jsonl or what "
        "`nearhit cache export` writes; trains a student in an environment of its own, quantises it, compares it with "
        "its teacher on rows that are held out, and writes the next version of a model: a classifier for Triton's "
        "python backend and for `adapter: onnx`. A run that was ended goes on after its last epoch.",
        (
            "nearhit distill --prepare --build-env .venv-build",
            "nearhit distill answers.jsonl --name intents",
            "nearhit distill train.csv --held-out test.csv --large --name intents --repository models",
        ),
        "the data has faults, each with its line, or there is no build environment",
    ),
    "help": Page(
        "Without a command: the list of all. --man prints a manual page of all commands.",
        ("nearhit help", "nearhit help cache purge", "nearhit help --man > nearhit.1"),
    ),
}
