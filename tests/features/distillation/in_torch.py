"""Run by the build environment, where torch is: prints the results of losses, pruning and resumption, as JSON."""

import contextlib
import copy
import json
import sys
from pathlib import Path

sys.path.append(sys.argv[1])

import numpy as np
import onnxruntime
import torch
import transformers
from trainer.export import export
from trainer.losses import distillation
from trainer.pruning import drop_unused_tokens, prune_units
from trainer.student import Student
from trainer.teacher import LargeModel
from trainer.training import Examples, Plan, padded, train
from trainer.tuning import Tuning, tune


class Killed(Exception):
    pass


def run(folder: Path, until: int | None) -> tuple[int, list[torch.Tensor]]:
    torch.manual_seed(0)
    student = Student(torch.randn(20, 8), 8, 3)
    rows = [[n % 20, (7 * n) % 20] for n in range(40)]
    labels = torch.tensor([n % 3 for n in range(40)])
    examples = Examples(rows, labels, torch.randn(40, 3), torch.arange(40) % 2 == 0)
    plan = Plan(0.5, 2.0, 4, 8, 1e-2, 1e-3, prune=0.5, prune_epochs=2, seed=3)

    def on_epoch(epoch: int, loss: float) -> None:
        if epoch == until:
            raise Killed

    begun = train(student, examples, plan, folder / "checkpoint.pt", "digest", on_epoch)
    return begun, [weights.detach() for weights in student.parameters()]


ROWS = [[1 + n % 4, *(5 + (n * step) % 15 for step in range(1, 2 + n % 3))] for n in range(32)]
LABELS = torch.tensor([row[0] - 1 for row in ROWS])  # on_epoch by the first token


def tuned(folder: Path, until: int | None) -> tuple[int, LargeModel, LargeModel]:
    """(epochs that were done before, the model before, the model after)"""
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    made = [LargeModel(transformers.BertModel(config, add_pooling_layer=False), 4)]
    made.append(copy.deepcopy(made[0]))

    def on_epoch(epoch: int, loss: float) -> None:
        if epoch == until:
            raise Killed

    begun = tune(made[1], ROWS, LABELS, Tuning(8, 1e-2, 2, 1, 8, 5), folder / "tuned.pt", "digest", on_epoch)
    return begun, made[0], made[1]


def exports(folder: Path) -> dict[str, dict[str, float]]:
    torch.manual_seed(2)
    student = Student(torch.randn(3000, 64), 64, 10)
    numbers, mask = padded([[3, 1, 4, 1, 5], [9, 2, 6]])
    with torch.no_grad():
        wanted = student(numbers, mask).numpy()
    found: dict[str, dict[str, float]] = {"strays": {}, "bytes": {}}
    for precision in ("int8", "fp16", "fp32"):
        whole = export(student, folder / f"{precision}.onnx", precision)
        session = onnxruntime.InferenceSession(str(folder / f"{precision}.onnx"))
        (said,) = session.run(None, {"input_ids": numbers.numpy(), "attention_mask": mask.numpy()})
        found["strays"][precision] = float(np.abs(said - wanted).max() / wanted.std())
        found["bytes"][precision] = (folder / f"{precision}.onnx").stat().st_size
    assert whole == found["bytes"]["fp32"]
    return found


folder = Path(sys.argv[2])
for name in ("whole", "parts"):
    (folder / name).mkdir()
_, whole = run(folder / "whole", None)
for stop in (2, 5):  # in the middle, and after the pruning
    with contextlib.suppress(Killed):
        run(folder / "parts", stop)
begun, parts = run(folder / "parts", None)
logits, teacher = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 2.0], [0.0, 0.0]])
loss = distillation(logits, torch.tensor([0, 0]), teacher, torch.tensor([True, False]), 0.25, 2.0)
pruned = Student(torch.randn(20, 8), 8, 3)
with torch.no_grad():
    pruned.out.weight[:, [1, 4, 6]] = 0.0  # these units change no answer
    asked = padded([[3, 1, 4], [9, 2]])
    before_pruning = pruned(*asked)
    prune_units(pruned, 0.4)
    after_pruning = pruned(*asked)
    slim = Student(pruned.table[[1, 2, 3, 4, 9]], 8, 3)
    slim.hidden, slim.out = pruned.hidden, pruned.out
    drop_unused_tokens(slim, [1, 2, 3, 4, 9], 20)
    slim_answers, unknown = slim(*asked), [slim(*padded([row])) for row in ([3, 1], [3, 7, 1, 19])]
    export(slim, folder / "slim.onnx", "int8")
    session = onnxruntime.InferenceSession(str(folder / "slim.onnx"))
    (slim_served,) = session.run(None, {"input_ids": asked[0].numpy(), "attention_mask": asked[1].numpy()})
_, _, at_once = tuned(folder / "whole", None)
with contextlib.suppress(Killed):
    tuned(folder / "parts", 1)
tuned_begun, before, after = tuned(folder / "parts", None)
with torch.no_grad():
    right = (after(*padded(ROWS)).argmax(1) == LABELS).float().mean().item()
below = [(one.transformer.embeddings, one.transformer.encoder.layer[0]) for one in (before, after)]
said = {
    "tuned_begun": tuned_begun,
    "tuned_equal": all(torch.equal(*pair) for pair in zip(at_once.parameters(), after.parameters(), strict=True)),
    "tuned_right": right,
    "frozen_equal": all(
        torch.equal(*pair)
        for one, other in zip(*below, strict=True)
        for pair in zip(one.parameters(), other.parameters(), strict=True)
    ),
    **exports(folder),
    "loss": loss.item(),
    "units": pruned.hidden.out_features,
    "pruned_equal": torch.allclose(before_pruning, after_pruning, atol=1e-6),
    "slim_equal": torch.allclose(after_pruning, slim_answers, atol=1e-6),
    "slim_rows": slim.table.shape[0],
    "slim_served": float(np.abs(slim_served - slim_answers.numpy()).max() / slim_answers.std()),
    "unknown_equal": torch.allclose(*unknown, atol=1e-6),
    "begun": begun,
    "equal": all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True)),
    "shapes": [list(weights.shape) for weights in whole],
}
print(json.dumps(said))
