"""Reranking, in the forms of Cohere, Jina, vLLM and Text Embeddings Inference.

- Cohere: https://docs.cohere.com/reference/rerank, `documents` and `top_n`, answered with `results`
- Jina: https://jina.ai/reranker, the same with `return_documents`; its documents may have images
- vLLM: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html, both of these forms
- Text Embeddings Inference: https://huggingface.github.io/text-embeddings-inference, `texts`, without a model,
  answered with a list

The scores of a list depend on nothing but the request, so its answer may be stored. A document may be a text or an
object. Their order counts: the answer names them by their index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.calls import Call
from gateway.dialects.equal_forms import NULLABLE, NUMBER, OFF, Table
from gateway.dialects.json_body import ABSENT, invalid_field
from gateway.dialects.known import path_of
from gateway.dialects.operations import search_units
from gateway.dialects.usage import AnswerUsage
from gateway.features.exact_calls.dialect import JsonCalls
from gateway.outcomes import Admission
from gateway.prices import Unit

TABLE: Table = {
    "top_n": NUMBER,
    "return_documents": NULLABLE,
    "raw_scores": OFF,  # of Text Embeddings Inference, "default: false", as the next one
    "return_text": OFF,
}
TEXT_FIELDS = ("text", "content")  # of a document that is an object


class Rerank(JsonCalls):
    """`Rerank` is the dialect of calls that sort documents by a query."""

    name = operation = "rerank"
    path = path_of("rerank")
    unit = Unit.SEARCH
    table = TABLE

    def check(self, fields: Mapping[str, Any]) -> None:
        query = fields.get("query", ABSENT)
        if not isinstance(query, str | dict) or not query:  # Jina and vLLM also take an object, with an image
            raise invalid_field("query", "a string or an object", query)
        name = "texts" if "texts" in fields else "documents"
        documents = fields.get(name, ABSENT)
        if not isinstance(documents, list | dict) or not documents:  # vLLM also takes an object, with a list
            raise invalid_field(name, "an array of documents", documents)

    def prompt(self, fields: Mapping[str, Any]) -> str:
        return "\n".join([*_texts_of(fields["query"]), *_texts_of(_documents(fields))])

    def admission_of(self, call: Call, answer: Any) -> Admission:
        results = answer.get("results") if isinstance(answer, Mapping) else answer
        if not isinstance(results, list) or not all(isinstance(each, Mapping) for each in results):
            return Admission.MALFORMED
        return Admission.STORED if results else Admission.EMPTY

    def billed_units(self, call: Call, usage: AnswerUsage) -> float | None:
        return search_units(call.body) if usage.searches is None else usage.searches


def _documents(fields: Mapping[str, Any]) -> Any:
    return fields["texts"] if "texts" in fields else fields["documents"]


def _texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for document in value:
            yield from _texts_of(document)
    elif isinstance(value, Mapping):
        yield from (text for name in TEXT_FIELDS for text in _texts_of(value.get(name)))
