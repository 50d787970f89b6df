"""The entry point in the build environment: fine-tunes a cross-encoder on the rows of a job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from .network import Network, Row, batch, load, save

DECAY, LONGEST_STEP = 0.01, 1.0
CHUNK = 32  # batches that are sorted by length together
SAY_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a training."""

    epochs: int
    rate: float  # highest learning rate
    batch: int
    smoothing: float  # a label of 1 counts as 1 - smoothing / 2
    warm_up: float  # share of the steps
    limit_s: float  # the rate falls to nothing by then
    keep: float  # share of the weights before in the result, in [0, 1)
    seed: int


def run(given: Sequence[str]) -> None:
    """Run the job of a folder. Arguments: FOLDER, "quiet" or "shown".

    It reads job.json, rows.jsonl, words.npy and the graph that the job names. It writes cross_encoder.onnx and
    trained.json. Raise OSError, ValueError, and errors of torch.
    """
    folder, quiet = Path(given[0]), given[1] == "quiet"
    job = json.loads((folder / "job.json").read_text())
    plan = Plan(**job["plan"])
    torch.manual_seed(plan.seed)
    torch.set_num_threads(job["threads"])
    rows = [Row(**json.loads(line)) for line in (folder / "rows.jsonl").read_text().splitlines()]
    network, started = load(Path(job["graph"])), time.monotonic()
    before = {name: each.clone() for name, each in network.state_dict().items()}
    steps, loss = train(network, rows, np.load(folder / "words.npy"), plan, quiet=quiet)
    network.load_state_dict(mean(before, network.state_dict(), plan.keep))
    save(network, folder / "cross_encoder.onnx")
    about = {"steps": steps, "loss": round(loss, 4), "seconds": round(time.monotonic() - started, 1)}
    (folder / "trained.json").write_text(json.dumps(about))


def train(
    network: Network, rows: Sequence[Row], words: np.ndarray, plan: Plan, *, quiet: bool = True
) -> tuple[int, float]:
    """Train the network. Return the steps done and the mean loss of the last hundred."""
    parameters = [each for each in network.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=plan.rate, weight_decay=DECAY)
    random, started, reported = np.random.default_rng(plan.seed), time.monotonic(), time.monotonic()
    total, step, losses = plan.epochs * -(-len(rows) // plan.batch), 0, list[float]()
    network.train()
    for _ in range(plan.epochs):
        for chosen in _batches(rows, plan.batch, random):
            now = time.monotonic()
            done = max(step / total, (now - started) / plan.limit_s)
            if done >= 1.0:
                return step, float(np.mean(losses[-100:]))
            if not quiet and now - reported >= SAY_EVERY_S:
                reported = now
                sys.stderr.write(f"training: {step}/{total} steps, loss {np.mean(losses[-100:]):.3f}\n")
            for group in optimiser.param_groups:
                group["lr"] = plan.rate * min((done + 1e-3) / plan.warm_up, (1.0 - done) / (1.0 - plan.warm_up))
            targets = torch.tensor([row.target for row in chosen]) * (1.0 - plan.smoothing) + plan.smoothing / 2
            weights = torch.tensor([row.weight for row in chosen])
            logits = network(**batch(chosen, words))
            loss = (functional.binary_cross_entropy_with_logits(logits, targets, reduction="none") * weights).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, LONGEST_STEP)
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.item())
            step += 1
    return step, float(np.mean(losses[-100:]))


def mean(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], keep: float) -> dict[str, torch.Tensor]:
    """Return the weighted mean of two states of one network, the first with the share `keep`.

    A mean of the weights before and after a fine-tuning knows most of both kinds of pairs (Wortsman et al. 2022).
    """
    return {
        name: keep * before[name] + (1.0 - keep) * each if each.is_floating_point() else each
        for name, each in after.items()
    }


def _batches(rows: Sequence[Row], size: int, random: np.random.Generator) -> list[list[Row]]:
    """Return all rows in random batches of like lengths, which need little padding."""
    order = random.permutation(len(rows)).tolist()
    batches = []
    for start in range(0, len(order), size * CHUNK):
        chunk = sorted(order[start : start + size * CHUNK], key=lambda at: len(rows[at].ids))
        batches += [[rows[at] for at in chunk[first : first + size]] for first in range(0, len(chunk), size)]
    return [batches[at] for at in random.permutation(len(batches))]
