"""Measures whether the time of an answer tells one client what another one has asked.

A victim asks one question of a pair. A prober then asks both, in random order, and guesses that the quicker one was
asked. If there is nothing to learn, half of the guesses are right. `python -m bench.timing_probe` runs it for
`share: tenant` and `share: user`, with short and long questions (five minutes, idle machine).

`other` is a prober of another party. `same` is one of the victim's own party, to whom hits show the truth: it proves
that the guesser can see. The command exits with 1 if probers of other parties are right in more than `LIMIT` of their
guesses. It does so too if one of the same party is right in less than `SEEN` of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from dataclasses import dataclass
from itertools import product

from bench.fixtures import CONFIG, body, new_question
from bench.gateways import free_port, gateway_of, server
from bench.load import Connection, exchange, request_bytes

PAIRS, WARMING = 300, 10
SIGHTED = 5  # the divisor of the number of pairs for a prober that is sure to see
LIMIT, SEEN = 0.55, 0.8
LONG = 15  # times the length of a short question: more than the embedder remembers
POLICY = """
version: 1
routes:
  - name: tenant
    match: {model: tenant}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}, share: tenant}
    route: {backend: main}
  - name: user
    match: {model: user}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}, share: user}
    route: {backend: main}
  - {name: default, match: {}, route: {backend: main}}
"""


@dataclass(frozen=True, slots=True)
class Client:
    key: str
    user: str

    def request(self, share: str, question: str) -> bytes:
        return request_bytes(body(question, share, user=self.user), headers=f"Authorization: Bearer {self.key}\r\n")


VICTIM = Client("a", "ann")
OTHERS = {"tenant": Client("b", "ann"), "user": Client("a", "bob")}  # by share


def question(draw: random.Random, length: str) -> str:
    return " ".join(new_question(draw) for _ in range(LONG if length == "long" else 1))


async def is_right(opened: Connection, draw: random.Random, share: str, length: str, prober: Client) -> bool:
    """Return whether the prober's guess on one pair is right."""
    asked, never = question(draw, length), question(draw, length)
    await exchange(opened, VICTIM.request(share, asked))
    order = [asked, never]
    draw.shuffle(order)
    took = {each: await exchange(opened, prober.request(share, each)) for each in order}
    return took[asked] < took[never]


async def accuracy(port: int, share: str, length: str, prober: Client, pairs: int) -> float:
    """Return the share of right guesses."""
    draw, opened = random.Random(f"{share} {length} {prober}"), await asyncio.open_connection("127.0.0.1", port)
    for _ in range(WARMING):
        await is_right(opened, draw, share, length, prober)
    right = sum([await is_right(opened, draw, share, length, prober) for _ in range(pairs)])
    opened[1].close()
    return right / pairs


async def measure(port: int, pairs: int) -> bool:
    """Print the accuracy of each guesser. Return whether all are as they should be."""
    blind, sighted = list[float](), list[float]()
    print(f"{'share':8} {'questions':10} {'prober':8} right")
    for share, length in product(OTHERS, ("short", "long")):
        for name, prober, found in (("other", OTHERS[share], blind), ("same", VICTIM, sighted)):
            count = pairs if found is blind else max(1, pairs // SIGHTED)
            found.append(await accuracy(port, share, length, prober, count))
            print(f"{share:8} {length:10} {name:8} {found[-1]:.1%}", flush=True)
    mean = sum(blind) / len(blind)
    print(f"other parties together: {mean:.1%} of {pairs * len(blind)}, at most {LIMIT:.0%} expected")
    return mean <= LIMIT and min(sighted) >= SEEN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="probes of each guesser (default: %(default)s)")
    pairs = parser.parse_args().pairs
    up = free_port()
    with (
        server(["bench.servers", "upstream", str(up)], up),
        gateway_of(CONFIG, POLICY, embedder="onnx", upstream=up, more="") as it,
    ):
        sys.exit(0 if asyncio.run(measure(it.port, pairs)) else 1)


if __name__ == "__main__":
    main()
