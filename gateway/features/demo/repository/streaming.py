"""The common part of `light` and `large`: reads a request, streams the answer, and stops if the client is gone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from .answering import Corpus, Style, answer
from .encoders import Encoder

WORDS_A_RESPONSE = 6  # about 30 responses for a long answer: the stream is visible, and still cheap
WORD = re.compile(r"\s*\S+\s*")
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CANCELLED = "nearhit_demo_cancelled_total"


class AnswerModel:
    """A decoupled model that answers from the documentation. Subclasses set the encoder and the style."""

    style: Style

    def make_encoder(self, directory: Path) -> Encoder:
        """Return the encoder with the files in `directory`."""
        raise NotImplementedError

    def initialize(self, args: dict[str, str]) -> None:
        directory = Path(args["model_repository"]) / args["model_version"]
        self.corpus = Corpus.load(directory)
        self.encoder = self.make_encoder(directory)
        self.encoder.encode(["warm up"])
        # The model keeps a reference: a family that is garbage-collected disappears from /metrics with its metrics.
        self._family = pb_utils.MetricFamily(
            name=CANCELLED,
            description="Answers given up because the client went away",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self._cancelled = self._family.Metric(labels={"model": json.loads(args["model_config"])["name"]})

    async def execute(self, requests: Sequence[Any]) -> None:
        await asyncio.gather(*(self._serve(request) for request in requests))

    async def _serve(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            await self._answer(request, sender)
        except Exception as error:  # a model must end every response stream, also after an error
            sender.send(
                pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}")), FINAL
            )

    async def _answer(self, request: Any, sender: Any) -> None:
        """Send the answer in groups of words. The last response adds the finish reason and the token counts."""
        prompt = _text(request, "text_input")
        interval_s = (_number(request, "chunk_interval_ms") or 0) / 1000
        text = answer(self.encoder.encode([last_turn(prompt)])[0], self.corpus, self.style)
        text, tokens, reason = truncate(text, _number(request, "max_tokens"), self.encoder.tokenizer)
        *head, last = groups(text)
        for part in head:
            if request.is_cancelled():
                self._cancelled.increment(1)
                sender.send(flags=FINAL)
                return
            sender.send(_response(part))
            await asyncio.sleep(interval_s)
        sender.send(
            _response(
                last,
                finish_reason=np.array([reason.encode()], np.object_),
                prompt_tokens=np.array([count(prompt, self.encoder.tokenizer)], np.int32),
                completion_tokens=np.array([tokens], np.int32),
            ),
            FINAL,
        )


def last_turn(prompt: str) -> str:
    """Return the last user turn of a transcript ("user: ...", with blank lines between turns): the question."""
    return re.split(r"(?:^|\n\n)user: ", prompt)[-1].strip()


def truncate(text: str, max_tokens: int | None, tokenizer: Tokenizer) -> tuple[str, int, str]:
    """Return the text cut to `max_tokens` word pieces, their number, and the finish reason, "stop" or "length"."""
    ends = [end for _, end in tokenizer.encode(text, add_special_tokens=False).offsets]
    if max_tokens is None or len(ends) <= max_tokens:
        return text, len(ends), "stop"
    return text[: ends[max_tokens - 1]] if max_tokens > 0 else "", max(max_tokens, 0), "length"


def count(text: str, tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def groups(text: str) -> list[str]:
    """Return the text in groups of words that concatenate to it. An empty text gives one empty group."""
    words = WORD.findall(text)
    return ["".join(words[i : i + WORDS_A_RESPONSE]) for i in range(0, len(words), WORDS_A_RESPONSE)] or [""]


def _response(text: str, **more: Any) -> Any:
    outputs = {"text_output": np.array([text.encode()], np.object_), **more}
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])


def _text(request: Any, name: str) -> str:
    return str(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0].decode(errors="replace"))


def _number(request: Any, name: str) -> int | None:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else int(tensor.as_numpy().reshape(-1)[0])
