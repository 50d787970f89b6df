"""Run by the build environment, where torch is: prints what the losses, pruning and resumption come to, as JSON."""

import contextlib
import json
import sys
from pathlib import Path

sys.path.append(sys.argv[1])

import torch
from trainer.losses import distillation
from trainer.student import Student, pruning_masks
from trainer.training import Examples, Plan, train


class Killed(Exception):
    pass


def run(folder: Path, until: int | None) -> tuple[int, list[torch.Tensor]]:
    torch.manual_seed(0)
    student = Student(torch.randn(20, 8), 8, 3)
    rows = [[n % 20, (7 * n) % 20] for n in range(40)]
    labels = torch.tensor([n % 3 for n in range(40)])
    examples = Examples(rows, labels, torch.randn(40, 3), torch.arange(40) % 2 == 0)
    plan = Plan(0.5, 2.0, 4, 8, 1e-2, 1e-3, prune=0.5, prune_epochs=2, seed=3)

    def told(epoch: int, loss: float) -> None:
        if epoch == until:
            raise Killed

    begun = train(student, examples, plan, folder / "checkpoint.pt", "digest", told)
    return begun, [weights.detach() for weights in student.parameters()]


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
masks = pruning_masks(Student(torch.randn(20, 8), 8, 3), 0.3)
said = {
    "loss": loss.item(),
    "pruned": sum(int((mask == 0).sum()) for mask in masks.values()),
    "of": sum(mask.numel() for mask in masks.values()),
    "masked": sorted(masks),
    "begun": begun,
    "equal": all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True)),
    "zeros": sum(int((weights == 0).sum()) for weights in whole if weights.dim() > 1),
}
print(json.dumps(said))
