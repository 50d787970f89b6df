"""Models that read a text in one pass: sentence embeddings, and classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from gateway.adapters.onnx.model_dir import ModelFolder
from gateway.adapters.onnx.model_files import MODEL_FILE, ModelCorrupt
from gateway.adapters.onnx_question import Question
from gateway.errors import Unfit
from gateway.messages import Token, Vector

SENTENCE, TOKENS = "sentence_embedding", ("token_embeddings", "last_hidden_state")
READ = frozenset({"input_ids", "attention_mask", "token_type_ids"})
USUAL_CONTEXT = 256  # what `nearhit model fetch` builds says nothing, and was trained with that


class _Reader:
    """The graph and its tokenizer. Raises `ModelMissing` or `ModelCorrupt`."""

    def __init__(self, folder: ModelFolder, threads: int, outputs: Sequence[str]) -> None:
        self._session = folder.session(threads)
        self._tokenizer: Tokenizer = folder.tokenizer()
        self._context = folder.context or USUAL_CONTEXT
        self._inputs = {each.name for each in self._session.get_inputs()}
        has = [each.name for each in self._session.get_outputs()]
        self.output = next((name for name in outputs if name in has), "")
        if not self.output or not self._inputs <= READ:
            raise ModelCorrupt(
                f"{folder.path / MODEL_FILE} has inputs {', '.join(sorted(self._inputs))[:200]} and outputs "
                f"{', '.join(has)[:200]}, expected some of {', '.join(sorted(READ))} and one of {', '.join(outputs)}"
            )

    def read(self, text: str, options: onnxruntime.RunOptions) -> tuple[npt.NDArray[np.float32], int]:
        """-> (the output of a pass of its own, without the batch's axis; the tokens). Raises `Unfit`."""
        ids = self._tokenizer.encode(text.encode("utf-8", "replace").decode()).ids
        if not 0 < len(ids) <= self._context:
            raise Unfit(
                f"a text has {len(ids)} tokens and the model on this machine reads 1 to {self._context}: "
                "expected one within that"
            )
        row = np.array([ids], np.int64)
        feed = {name: np.ones_like(row) for name in self._inputs}
        feed["input_ids"] = row
        if "token_type_ids" in feed:
            feed["token_type_ids"] = np.zeros_like(row)
        (read,) = self._session.run([self.output], feed, options)
        return read[0], len(ids)


class Vectors:
    """Texts as unit vectors, as sentence-transformers makes them: each has a pass of its own, since int8 scales are
    taken over a pass (see `OnnxEncoder`)."""

    def __init__(self, folder: ModelFolder, threads: int) -> None:
        self._reader = _Reader(folder, threads, (SENTENCE, *TOKENS))
        self._pooling = folder.pooling()

    def embed(self, text: str, options: onnxruntime.RunOptions) -> Vector:
        """Raises `Unfit`."""
        read, _ = self._reader.read(text, options)
        if self._reader.output in TOKENS:
            read = read[0] if self._pooling == "cls" else read.mean(axis=0)
        vector = np.asarray(read, np.float32)
        return vector / max(float(np.linalg.norm(vector)), 1e-12)


@dataclass(frozen=True, slots=True)
class Classification:
    label: str
    tokens: tuple[Token, ...]  # the label with its log probability, where that was asked for
    input_tokens: int


class Classifier:
    """What kind of text it is: the answer is the label, one token with its log probability."""

    def __init__(self, folder: ModelFolder, threads: int) -> None:
        self._reader = _Reader(folder, threads, ("logits",))
        labels = folder.labels
        if not labels:
            raise ModelCorrupt(f"{folder.path} does not name its labels, expected id2label in config.json")
        self._labels = labels
        self._apart = folder.config.get("problem_type") == "multi_label_classification"

    def classify(self, question: Question, options: onnxruntime.RunOptions) -> Classification:
        """Raises `Unfit`."""
        logits, tokens = self._reader.read(question.text, options)
        if logits.shape != (len(self._labels),):
            raise ModelCorrupt(f"the model gives {logits.size} numbers for {len(self._labels)} labels")
        scores = np.asarray(logits, np.float64)
        odds = -np.logaddexp(0.0, -scores) if self._apart else scores - np.logaddexp.reduce(scores)
        best, *_ = order = np.argsort(-odds, kind="stable").tolist()
        beside = tuple(self._token(label, odds[label]) for label in order[: question.logprobs or 0])
        said = () if question.logprobs is None else (self._token(best, odds[best], beside),)
        return Classification(self._labels[best], said, tokens)

    def _token(self, label: int, logprob: float, beside: tuple[Token, ...] = ()) -> Token:
        name = self._labels[label]
        return Token(name, float(logprob), beside)
