"""Computes complexity scores of recorded outcomes, for `make bench-routing`.

`python -m training.outcome_scores --outcomes JSONL.GZ --out JSON` takes a minute.

`held_out` scores come from weights without any prompt of the same group of subjects. `shipped` scores come from the
gateway's weights, which were fitted on RouteLLM's outcomes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from gateway.routing.complexity import WEIGHTS, load_weights
from gateway.routing.prompt_prior import load_prior
from training import gaps
from training.prompt_prior import exam_scores, fit_exam, option_scale, read

GROUPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=Path, required=True, help="routellm_outcomes.jsonl.gz")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows, shipped = gaps.rows(arguments.outcomes), load_prior(WEIGHTS)
    asked = read([row["prompt"] for row in rows], load_weights().rarity)
    light, large = (np.array([float(row[name]) for row in rows]) for name in ("weak", "strong"))
    fold = gaps.domain_folds(np.array([row["domain"] for row in rows]), GROUPS)
    held_out = np.zeros(len(rows))
    for at in range(GROUPS):
        seen, held = asked.at(fold != at), fold == at
        options = option_scale(seen)
        weights = fit_exam(seen, (large - light)[~held], shipped.rates, options)
        held_out[held] = exam_scores(weights, asked.at(held), shipped.rates, options)
    scores = {
        "held_out": held_out,
        "shipped": exam_scores(shipped.exam, asked, shipped.rates, shipped.options),
        "light": light,
        "large": large,
    }
    length = [len(row["prompt"]) for row in rows]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({**{k: v.round(6).tolist() for k, v in scores.items()}, "length": length}))


if __name__ == "__main__":
    main()
