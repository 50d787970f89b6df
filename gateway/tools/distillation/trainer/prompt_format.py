"""The tokenizer of a model that writes, and the text around a question that the model was trained to go on from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .errors import Unfit

ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
END, PAD = "<|end|>", "<|pad|>"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('the role ' ~ message['role'] ~ ' is not known') }}{% endif %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Of a model on disk that has none: what it is asked, on lines of their own.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def tokenizer_of(texts: Iterable[str], special: Sequence[str], vocabulary: int, least: int) -> Tokenizer:
    """Byte-level: any text can be read and said, and a sign beyond ASCII comes in several tokens. `least`: how often
    two pieces stand together before they are one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=least, show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def own(texts: Iterable[str], vocabulary: int, context: int) -> Any:
    tokenizer = tokenizer_of(texts, (*ROLES, END, PAD), vocabulary, 2)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=context
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def given(folder: Path) -> Any:
    """Of a model on disk. Raises `Unfit`."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise Unfit(f"{folder} has no tokenizer that can be read: {error}") from None
    if not tokenizer.is_fast or tokenizer.eos_token_id is None:
        raise Unfit(f"{folder}: expected a tokenizer.json, and a token that ends a text")
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_TEMPLATE
    return tokenizer


def encoded(tokenizer: Any, text: str, answer: str) -> tuple[list[int], list[int]]:
    """(tokens of the question as the gateway will put it, those of the answer with its end)"""
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(asked, add_special_tokens=False)["input_ids"]
    said = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return ids, [*said, tokenizer.eos_token_id]
