"""Models that read a text in one pass: sentence embedders and classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import orjson
from tokenizers import Tokenizer

from gateway.adapters.onnx.model_dir import ModelDir
from gateway.adapters.onnx.model_files import MODEL_FILE, ModelCorrupt
from gateway.calls import Call, Token
from gateway.dialects.translation.neutral import is_neutral
from gateway.entries import Vector
from gateway.errors import BadRequest, UnsupportedByBackend

SENTENCE, TOKENS = "sentence_embedding", ("token_embeddings", "last_hidden_state")

READ = frozenset({"input_ids", "attention_mask", "token_type_ids"})

DEFAULT_CONTEXT = 256  # used if no file states a length: models built by `nearhit model fetch` were trained with it


class _TextModel:
    """The graph and its tokenizer. Raises `ModelMissing` or `ModelCorrupt`."""

    def __init__(self, folder: ModelDir, threads: int, outputs: Sequence[str]) -> None:
        self._session = folder.session(threads)
        self._tokenizer: Tokenizer = folder.tokenizer()
        self._context = folder.context or DEFAULT_CONTEXT
        self._inputs = {each.name for each in self._session.get_inputs()}
        has = [each.name for each in self._session.get_outputs()]
        self.output = next((name for name in outputs if name in has), "")
        if not self.output or not self._inputs <= READ:
            raise ModelCorrupt(
                f"{folder.path / MODEL_FILE} has inputs {', '.join(sorted(self._inputs))[:200]} and outputs "
                f"{', '.join(has)[:200]}, expected some of {', '.join(sorted(READ))} and one of {', '.join(outputs)}"
            )

    def read(self, text: str, options: onnxruntime.RunOptions) -> tuple[npt.NDArray[np.float32], int]:
        """Return the output of one pass without the batch axis, and the number of tokens. Raise
        `UnsupportedByBackend`."""
        ids = self._tokenizer.encode(text.encode("utf-8", "replace").decode()).ids
        if not 0 < len(ids) <= self._context:
            raise UnsupportedByBackend(
                f"a text has {len(ids)} tokens and the model on this machine reads 1 to {self._context}: "
                "expected a text of that length"
            )
        row = np.array([ids], np.int64)
        feed = {name: np.ones_like(row) for name in self._inputs}
        feed["input_ids"] = row
        if "token_type_ids" in feed:
            feed["token_type_ids"] = np.zeros_like(row)
        (read,) = self._session.run([self.output], feed, options)
        return read[0], len(ids)


class SentenceEmbedder:
    """`SentenceEmbedder` returns unit vectors, as sentence-transformers does. Each text has its own pass, because int8
    scales cover a pass (see `OnnxEncoder`)."""

    def __init__(self, folder: ModelDir, threads: int) -> None:
        self._reader = _TextModel(folder, threads, (SENTENCE, *TOKENS))
        self._pooling = folder.pooling()

    def embed(self, text: str, options: onnxruntime.RunOptions) -> Vector:
        """Return the vector of a text. Raise `UnsupportedByBackend`."""
        read, _ = self._reader.read(text, options)
        if self._reader.output in TOKENS:
            read = read[0] if self._pooling == "cls" else read.mean(axis=0)
        vector = np.asarray(read, np.float32)
        return vector / max(float(np.linalg.norm(vector)), 1e-12)


@dataclass(frozen=True, slots=True)
class ClassifierOutput:
    label: str
    tokens: tuple[Token, ...]  # the label with its log probability, if requested
    input_tokens: int


class OnnxTextClassifier:
    """`OnnxTextClassifier` classifies a text. The answer is the label, as one token with its log probability."""

    def __init__(self, folder: ModelDir, threads: int) -> None:
        self._reader = _TextModel(folder, threads, ("logits",))
        labels = folder.labels
        if not labels:
            raise ModelCorrupt(f"{folder.path} does not name its labels, expected id2label in config.json")
        self._labels = labels
        self._is_multi_label = folder.config.get("problem_type") == "multi_label_classification"

    def classify(self, question: ClassifierInput, options: onnxruntime.RunOptions) -> ClassifierOutput:
        """Classify a text. Raise `UnsupportedByBackend`."""
        logits, tokens = self._reader.read(question.text, options)
        if logits.shape != (len(self._labels),):
            raise ModelCorrupt(f"the model gives {logits.size} numbers for {len(self._labels)} labels")
        scores = np.asarray(logits, np.float64)
        odds = -np.logaddexp(0.0, -scores) if self._is_multi_label else scores - np.logaddexp.reduce(scores)
        best, *_ = order = np.argsort(-odds, kind="stable").tolist()
        beside = tuple(self._token(label, odds[label]) for label in order[: question.logprobs or 0])
        logprobs = () if question.logprobs is None else (self._token(best, odds[best], beside),)
        return ClassifierOutput(self._labels[best], logprobs, tokens)

    def _token(self, label: int, logprob: float, beside: tuple[Token, ...] = ()) -> Token:
        name = self._labels[label]
        return Token(name, float(logprob), beside)


# The input of a classifier: one text, and the requested probabilities. Pure.
MAX_TOP_LOGPROBS = 20  # the limit of OpenAI's protocol

# Fields that would change the answer in a way that a label cannot follow, with the values that are allowed.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
}


@dataclass(frozen=True, slots=True)
class ClassifierInput:
    text: str
    logprobs: int | None = None  # number of likeliest labels to return with the label; None: no probabilities at all


def parse_classifier_input(call: Call, backend: str) -> ClassifierInput:
    """Return the prompt, or the user's last text; earlier messages are ignored. Raise `UnsupportedByBackend`."""
    body = _as_neutral(call, backend)
    for field, values in NEUTRAL.items():
        if body.get(field) is not None and body[field] not in values:
            raise UnsupportedByBackend(
                f"'{field}' is not supported by the model on this machine: leave it out", param=field
            )
    chat = "messages" in body
    return ClassifierInput(
        _last_text(body["messages"]) if chat else _prompt(body.get("prompt")), _logprobs(body, chat=chat)
    )


def _as_neutral(call: Call, backend: str) -> Mapping[str, Any]:
    """Return the body of the call in the neutral form. Raise `UnsupportedByBackend`."""
    if is_neutral(call.dialect):
        return call.body
    translation = call.dialect.to_neutral
    if translation is not None:
        try:
            body: dict[str, Any] = orjson.loads(translation(call, model=call.model or backend, created=0).outgoing.body)
        except BadRequest as refused:
            raise UnsupportedByBackend(refused.message, param=refused.param) from None
        return body
    if not call.prompt:
        raise UnsupportedByBackend(f"backend '{backend}' reads text, but the {call.dialect.name} call contains none")
    return {"tools": call.body.get("tools"), "messages": [{"role": "user", "content": call.prompt}]}


def _last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    place = next((at for at in reversed(range(len(messages))) if messages[at]["role"] == "user"), None)
    if place is None:
        return ""
    content = messages[place].get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        if any(part.get("type") != "text" for part in content):
            where = f"messages[{place}].content"
            raise UnsupportedByBackend(
                f"'{where}' has parts that the model on this machine cannot read, expected text", param=where
            )
        return "\n".join(part["text"] for part in content)
    return content or ""


def _prompt(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise UnsupportedByBackend("'prompt' must be one string for the model on this machine", param="prompt")
    return prompt


def _logprobs(body: Mapping[str, Any], *, chat: bool) -> int | None:
    """Return the number of log probabilities. Chats have a switch and a separate number; completions have one
    number."""
    wanted = body.get("logprobs")
    if wanted is None or wanted is False:
        return None
    beside = body.get("top_logprobs") or 0 if chat else wanted
    if type(beside) is not int or not 0 <= beside <= MAX_TOP_LOGPROBS:
        raise UnsupportedByBackend(
            f"the number of log probabilities is out of range: expected an integer from 0 to {MAX_TOP_LOGPROBS}",
            param="top_logprobs" if chat else "logprobs",
        )
    return beside
