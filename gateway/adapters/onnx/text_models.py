"""Models that read a text in one pass: sentence embeddings, and classifiers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from gateway.adapters.onnx.generator import Piece
from gateway.adapters.onnx.model_dir import ModelFolder
from gateway.adapters.onnx.model_files import MODEL_FILE, ModelCorrupt
from gateway.errors import Unfit
from gateway.generation.asked import Asked, Sampling, asked_of
from gateway.generation.sampling import likeliest, log_probabilities
from gateway.messages import Call, Token, Vector

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

    def vectors(self, texts: Sequence[str], options: onnxruntime.RunOptions) -> Iterator[Vector]:
        for text in texts:
            read, _ = self._reader.read(text, options)
            if self._reader.output in TOKENS:
                read = read[0] if self._pooling == "cls" else read.mean(axis=0)
            vector = np.asarray(read, np.float32)
            yield vector / max(float(np.linalg.norm(vector)), 1e-12)


class Classifier:
    """What kind of text it is: the answer is the label, one token with its log probability."""

    def __init__(self, folder: ModelFolder, threads: int) -> None:
        self._reader = _Reader(folder, threads, ("logits",))
        labels = folder.labels
        if not labels:
            raise ModelCorrupt(f"{folder.path} does not name its labels, expected id2label in config.json")
        self._labels = labels
        self._apart = folder.config.get("problem_type") == "multi_label_classification"

    def asked(self, call: Call, body: dict[str, object]) -> Asked:
        """What is classified is the last text of the user, whatever was said before. Raises `Unfit`."""
        asked = asked_of({**body, "stop": None}, None, Sampling())
        text = asked.prompt or next((m["content"] for m in reversed(asked.messages) if m["role"] == "user"), "")
        return replace(asked, messages=(), prompt=text)

    def pieces(self, asked: Asked, options: onnxruntime.RunOptions) -> Iterator[Piece]:
        logits, tokens = self._reader.read(asked.prompt or "", options)
        if logits.shape != (len(self._labels),):
            raise ModelCorrupt(f"the model gives {logits.size} numbers for {len(self._labels)} labels")
        scores = np.asarray(logits, np.float32)
        odds = -np.logaddexp(0.0, -scores.astype(np.float64)) if self._apart else log_probabilities(scores)
        best, *_ = order = likeliest(odds, len(odds))
        beside = tuple(self._token(label, odds[label]) for label in order[: asked.logprobs or 0])
        said = () if asked.logprobs is None else (self._token(best, odds[best], beside),)
        yield Piece(self._labels[best], said, "stop", tokens, 1)

    def _token(self, label: int, logprob: float, beside: tuple[Token, ...] = ()) -> Token:
        name = self._labels[label]
        return Token(name, name.encode(), float(logprob), beside)
