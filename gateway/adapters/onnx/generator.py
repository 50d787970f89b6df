"""Text written by a decoder: the prompt read in chunks, then a token a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnxruntime
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from gateway.adapters.onnx.decoder import Decoder, Memory
from gateway.adapters.onnx.model_dir import ModelFolder
from gateway.adapters.onnx.model_files import MODEL_FILE, ModelCorrupt
from gateway.errors import BackendError, Unfit
from gateway.generation.asked import Asked, asked_of
from gateway.generation.sampling import Logits, choose, likeliest, log_probabilities
from gateway.generation.writing import Writing
from gateway.messages import Call, Token

# Tokens of a prompt a pass. The graph gives a number for each word of the vocabulary at each of them: of 150,000 words
# 77 MB at 128, 1.2 GB at 2,000. Between two passes others have their turn.
CHUNK = 128


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of an answer. `finish`: of the last one, `stop` or `length`."""

    text: str
    tokens: tuple[Token, ...] = ()  # where they were asked for
    finish: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0  # up to here


@dataclass(slots=True)
class _Answer:
    """One that is being written."""

    asked: Asked
    writing: Writing
    draws: np.random.Generator
    input_tokens: int
    said: Counter[int] = field(default_factory=Counter)

    def piece(self, text: str, tokens: tuple[Token, ...], finish: str | None = None) -> Piece | None:
        """None where there is nothing to tell yet."""
        told = tokens if self.asked.logprobs is not None else ()
        if not text and not told and finish is None:
            return None
        return Piece(text, told, finish, self.input_tokens, self.said.total())


class Generator:
    """`max_tokens`: of an answer, at most; clients may ask for less. Raises `ModelMissing` or `ModelCorrupt`."""

    def __init__(self, folder: ModelFolder, threads: int, max_tokens: int) -> None:
        self._decoder = Decoder(folder.session(threads), folder.path / MODEL_FILE)
        self._tokenizer: Tokenizer = folder.tokenizer()
        self._template = folder.template()
        self._ends, self._usual = folder.ends, folder.sampling
        self._max_tokens = max_tokens
        context = folder.context
        if context is None:
            raise ModelCorrupt(
                f"{folder.path} does not say how many tokens its model reads, expected it in config.json"
            )
        self._context = context

    def asked(self, call: Call, body: dict[str, object]) -> Asked:
        """`body`: of the call, as OpenAI's clients say it. Raises `Unfit`."""
        return asked_of(body, call.max_tokens, self._usual)

    def pieces(self, asked: Asked, options: onnxruntime.RunOptions) -> Iterator[Piece | None]:
        """The answer, a step between two items; the last one has a `finish`. Raises `Unfit` before the first one."""
        ids = self._ids(asked)
        room = min(asked.max_tokens or self._max_tokens, self._max_tokens, self._context - len(ids))
        decode = DecodeStream(skip_special_tokens=True)
        writing = Writing(lambda number: decode.step(self._tokenizer, number), asked.stop)
        answer = _Answer(asked, writing, np.random.Generator(np.random.PCG64(asked.sampling.seed)), len(ids))
        memory = Memory()
        chunk = CHUNK if self._decoder.remembers else len(ids)
        for start in range(0, len(ids) - chunk, chunk):
            self._decoder.read(memory, ids[start : start + chunk], options)
            yield None
        rest = ids[len(memory.ids) :]
        for _ in range(room):
            number = self._next(answer, self._decoder.read(memory, rest, options))
            if number is None:
                yield answer.piece(*writing.end(), finish="stop")
                return
            text, tokens = writing.add(number[0], number[1])
            if writing.stopped:
                yield answer.piece(text, tokens, finish="stop")
                return
            yield answer.piece(text, tokens)
            rest = [number[0]]
        yield answer.piece(*writing.end(), finish="length")

    def likelihoods(self, asked: Asked, answer: str, options: onnxruntime.RunOptions) -> list[float]:
        """Of an answer that another wrote: the log probability of each of its tokens and, where there is one, of its
        end. Raises `Unfit` where question and answer have no room."""
        before = self._ids(asked)
        said = [*self._tokenizer.encode(answer, add_special_tokens=False).ids, *sorted(self._ends)[:1]]
        if len(before) + len(said) > self._context:
            raise Unfit(f"question and answer have {len(before) + len(said)} tokens, the model reads {self._context}")
        every = self._decoder.read_all(Memory(), [*before, *said[:-1]], options)[len(before) - 1 :]
        told = [log_probabilities(np.asarray(each, np.float32)) for each in every]
        return [float(each[number]) for each, number in zip(told, said, strict=True)]

    def _next(self, answer: _Answer, logits: Logits) -> tuple[int, Token] | None:
        """None: the model has said all."""
        if np.isnan(logits).any():
            raise BackendError("the model's numbers for the next token are none")
        number = choose(logits, answer.asked.sampling, answer.said, float(answer.draws.random()))
        if number in self._ends:
            return None
        answer.said[number] += 1
        if answer.asked.logprobs is None:
            return number, Token("", b"", 0.0)
        told = log_probabilities(logits)
        beside = tuple(self._token(other, told[other]) for other in likeliest(told, answer.asked.logprobs))
        return number, self._token(number, told[number], beside)

    def _token(self, number: int, logprob: float, beside: tuple[Token, ...] = ()) -> Token:
        """JSON has no infinity: what is impossible gets the least that OpenAI's own answers have."""
        text = self._tokenizer.decode([number], skip_special_tokens=False)
        raw = None if "\ufffd" in text else text.encode()
        return Token(text, raw, max(float(logprob), -9999.0), beside)

    def _ids(self, asked: Asked) -> list[int]:
        """Of the prompt as the model was trained to read it. Raises `Unfit`."""
        text, special = asked.prompt, True
        if text is None and self._template is not None:
            text, special = self._template.render(asked.messages), False  # it writes its own
        elif text is None and len(asked.messages) == 1:
            text = asked.messages[0]["content"]
        elif text is None:
            text = "\n\n".join(f"{message['role']}: {message['content']}" for message in asked.messages)
        # JSON can hold half a surrogate pair, which the tokenizer refuses.
        ids: list[int] = self._tokenizer.encode(
            text.encode("utf-8", "replace").decode(), add_special_tokens=special
        ).ids
        if not ids:
            raise Unfit("the prompt is empty, expected some text")
        if len(ids) >= self._context:
            raise Unfit(
                f"the prompt has {len(ids)} tokens and the model on this machine reads {self._context}, its answer "
                "included: expected a shorter one"
            )
        return ids
