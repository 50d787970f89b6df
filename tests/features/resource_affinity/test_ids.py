"""Ids are read from bodies whose reading holds nobody up."""

from __future__ import annotations

import orjson
import pytest

from gateway.features.resource_affinity.ids import MAX_COMMAS, MAX_JSON_BYTES, MAX_NODES, ids_in_json, reported_ids

ID = {"file_id": "file-1"}


@pytest.mark.parametrize(
    "many",
    [[{}] * (MAX_NODES + 1), [[]] * (MAX_NODES + 1), [1] * (MAX_COMMAS + 2), dict.fromkeys(map(str, range(50_000)), 1)],
    ids=["objects", "lists", "numbers", "names"],
)
def test_a_body_of_very_many_values_is_not_read(many: object) -> None:
    """Parsing a megabyte of them takes 20 to 150 ms of the event loop."""
    assert ids_in_json(orjson.dumps({**ID, "many": many})) == []
    assert reported_ids(orjson.dumps({"id": "batch_1", "many": many})) == ["batch_1"]


def test_a_large_body_of_text_is_read() -> None:
    body = orjson.dumps({"text": "a word, " * 30_000 + "x" * 500_000, **ID})
    assert len(body) < MAX_JSON_BYTES
    assert ids_in_json(body) == ["file-1"]
