"""Computes complexity scores of recorded outcomes, for `make bench-routing`.

`python -m training.outcome_scores --outcomes JSONL.GZ --model DIR --out JSON` needs scikit-learn, as all training does,
and three minutes.

`held_out` scores come from weights without any prompt of the same group of subjects. `shipped` scores come from the
gateway's weights, which were fitted on RouteLLM's outcomes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.routing.complexity import load_weights
from gateway.routing.prompt_features import Commonness
from training import gaps
from training.complexity import common_words, domain_folds, held_out_scores, load_graded, read_outcomes, score_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=Path, required=True, help="routellm_outcomes.jsonl.gz")
    parser.add_argument("--model", type=Path, required=True, help="folder of the embedding model")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    encoder = OnnxEncoder(arguments.model, threads=2)
    rarity = Commonness(common_words(arguments.model))
    seen = read_outcomes(gaps.rows(arguments.outcomes), encoder, rarity)
    scores = {
        "held_out": held_out_scores(seen, load_graded(encoder, rarity), rarity, domain_folds(seen.domains))["vector"],
        "shipped": score_all(load_weights(), seen),
        "light": seen.light,
        "large": seen.large,
    }
    length = [len(prompt) for prompt in seen.prompts]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({**{k: v.round(6).tolist() for k, v in scores.items()}, "length": length}))


if __name__ == "__main__":
    main()
