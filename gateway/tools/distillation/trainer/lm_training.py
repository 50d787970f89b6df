"""A language model that learns what a large one wrote.

Kim and Rush, "Sequence-Level Knowledge Distillation" (EMNLP 2016): the teacher's own answer stands for all that it
might have said, so that the loss is the cross-entropy of its tokens, and no probability of the teacher's is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from . import prompt_format
from .checkpointing import Told, drawn, resumable
from .decoder import exported, try_export
from .errors import Unfit
from .progress import shown
from .pruning import Pruning, zeros_of
from .training import batches, pace, padded

UNSAID = -100  # the target of a token that is read and not learnt, as torch has it
HEAD_WIDTH = 32
LONGEST_STEP = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    epochs: int
    batch: int
    rate: float
    decay: float
    prune: float
    prune_epochs: int
    seed: int

    @property
    def total(self) -> int:
        return self.epochs + (self.prune_epochs if self.prune else 0)


@dataclass(frozen=True, slots=True)
class Line:
    ids: list[int]
    targets: list[int]


def write(
    job: dict[str, Any], rows: Sequence[dict[str, Any]], digest: str, folder: Path, *, quiet: bool
) -> dict[str, Any]:
    """Leaves the folder `student` that `adapter: onnx` serves; -> what is to be reported. Raises `Unfit`."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, tokenizer, context = _given(job) if job["student"] else _own(job, rows)
    lines = [_line(*prompt_format.encoded(tokenizer, row["text"], row["label"])) for row in rows]
    fitting = [line for line in lines if len(line.ids) <= context]
    if not fitting:
        raise Unfit(f"no question has room for its answer in {context} tokens, expected a larger --context")
    plan, some = Plan(**job["plan"]), [line.ids for line in fitting[:4]]
    if job["student"]:
        try_export(model, some)
    with shown("training", plan.total, "epochs", quiet=quiet) as tell:
        begun = train(model, fitting, plan, folder / "checkpoint.pt", digest, tell.epoch)
    size = exported(model, tokenizer, some, folder / "student", job["precision"])
    return {
        "fp32_bytes": size,
        "resumed_after": begun,
        "zeros": zeros_of(model),
        "left_out": len(lines) - len(fitting),
        "weights": sum(each.numel() for each in model.parameters()),
        "vocabulary": len(tokenizer),
        "context": context,
    }


def train(model: Any, lines: Sequence[Line], plan: Plan, checkpoint: Path, digest: str, told: Told) -> int:
    """Returns the epochs that an earlier run had done."""
    weights = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=plan.rate, weight_decay=plan.decay, fused=True)
    pruning = Pruning(model, plan.prune)
    lengths = [len(line.ids) for line in lines]
    a_pass = -(-len(lines) // plan.batch)

    def epoch(number: int) -> float:
        if number == plan.epochs:
            pruning.begin()
        torch.manual_seed(plan.seed * 100_003 + number)  # of the dropout
        model.train()
        losses, tokens = 0.0, 0
        for at, chosen in enumerate(batches(lengths, plan.batch, drawn(plan.seed, number))):
            for group in optimiser.param_groups:
                group["lr"] = plan.rate * pace((number * a_pass + at) / (plan.total * a_pass))
            loss, said = _loss(model, [lines[row] for row in chosen])
            optimiser.zero_grad()
            (loss / said).backward()
            torch.nn.utils.clip_grad_norm_(weights, LONGEST_STEP)
            optimiser.step()
            pruning.apply()
            losses, tokens = losses + loss.item(), tokens + said
        return losses / tokens

    kept = {"student": model, "optimiser": optimiser, "masks": pruning}
    return resumable(kept, plan.total, checkpoint, digest, epoch, told)


def _loss(model: Any, lines: Sequence[Line]) -> tuple[torch.Tensor, int]:
    """(the sum over the tokens of the answers, how many these are)"""
    ids, mask = padded([line.ids for line in lines])
    targets = torch.full_like(ids, UNSAID)
    for row, line in enumerate(lines):
        targets[row, : len(line.targets)] = torch.tensor(line.targets)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    wanted = targets[:, 1:]
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=UNSAID, reduction="sum"
    )
    return loss, int((wanted != UNSAID).sum())


def _line(asked: list[int], said: list[int]) -> Line:
    return Line(asked + said, [UNSAID] * len(asked) + said)


def _own(job: dict[str, Any], rows: Sequence[dict[str, Any]]) -> tuple[Any, Any, int]:
    """(model, tokenizer, context): of a configuration, with a tokenizer of the texts themselves."""
    context = job["context"]
    tokenizer = prompt_format.own((row[part] for row in rows for part in ("text", "label")), job["vocabulary"], context)
    heads = max(1, job["width"] // HEAD_WIDTH)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=job["width"], intermediate_size=job["hidden"],
        num_hidden_layers=job["layers"], num_attention_heads=heads, num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=context, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), tokenizer, context


def _given(job: dict[str, Any]) -> tuple[Any, Any, int]:
    """A model on disk. Raises `Unfit`."""
    folder = Path(job["student"])
    tokenizer = prompt_format.given(folder)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise Unfit(f"{folder} has no causal language model that can be read: {error}") from None
    reads = getattr(model.config, "max_position_embeddings", job["context"])
    return model, tokenizer, min(job["context"], reads)
