"""Run by the build environment: prints the logits of the float weights of a graph, as JSON."""

import json
import sys
from pathlib import Path

sys.path.append(sys.argv[1])

import numpy as np
import torch
from trainer.network import Row, batch, load

network = load(Path(sys.argv[2])).eval()
found = []
for row in json.load(sys.stdin)["rows"]:
    words = np.array(row["words"], np.float32)
    with torch.no_grad():
        found.append(float(network(**batch([Row(range(len(words)), row["second_at"], 0.0)], words))[0]))
print(json.dumps(found))
