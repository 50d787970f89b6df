"""`nearhit cache export` and `nearhit cache import`."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.errors import StoreUnavailable
from tests.fixtures.cache_commands import EXACT, Nearhit, config_for
from tests.fixtures.cache_commands import _nothing_takes_long as _nothing_takes_long  # fixtures
from tests.fixtures.cache_commands import nearhit as nearhit
from tests.fixtures.cache_commands import served as served
from tests.fixtures.gateways import Served, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until


async def test_what_was_exported_is_served_by_the_gateway_that_imports_it(
    upstream: Upstream, tmp_path: Path, nearhit: Nearhit, outside_store: OutsideServer
) -> None:
    """Exactly and by similarity, as old as it was, also after all was removed; a second import changes nothing."""
    file = tmp_path / "answers.jsonl"
    async with gateway_of(config_for(tmp_path / "one", upstream), EXACT) as one:
        await one.chat("how do I reset my password", headers={"Cache-Tag": "docs"})
        await one.chat("tell me all about the weather", stream=True)
        await one.chat("bare", headers={"x-app": "plain"})
        code, out, _ = await nearhit("export", "--out", file, admin=one.admin_url)
        assert (code, out) == (0, f"3 entries in {file}\n")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await nearhit("purge", "--all", admin=one.admin_url)
        code, out, _ = await nearhit("import", file, admin=one.admin_url)
        assert (code, out) == (0, "3 imported, 0 already stored, 0 refused, 0 re-embedded\n")
        assert (await one.chat("how do I reset my password")).cache_status.startswith("nearhit; hit; detail=exact")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    asked = {line["question"]: line for line in lines}
    line = asked["how do I reset my password"]
    assert line["answer"] == "upstream answers: how do I reset my password"
    assert (line["route"], line["model"], line["tags"], line["streamed"]) == ("default", "m", ["docs"], False)
    assert asked["tell me all about the weather"]["answer"] == "upstream answers: tell me all about the weather"
    assert asked["bare"]["vector"] is None
    calls = len(upstream.calls)
    store = {"url": outside_store.url}
    async with gateway_of(config_for(tmp_path / "two", upstream, store=store), EXACT) as two:
        await until(lambda: two.gateway.recovery.ready)
        assert (await nearhit("import", file, admin=two.admin_url))[0] == 0
        hit = await two.chat("how do I reset my password")
        assert hit.cache_status.startswith("nearhit; hit; detail=exact")
        assert (await two.chat("how do I reset my password please")).cache_status.endswith("detail=semantic")
        stream = await two.chat("tell me all about the weather", stream=True)
        assert stream.body.endswith(b"data: [DONE]\n\n")
        assert (await two.chat("bare", headers={"x-app": "plain"})).cache_status.startswith("nearhit; hit")
        assert len(upstream.calls) == calls
        _, out, _ = await nearhit("import", file, admin=two.admin_url)
        assert out.startswith("0 imported, 3 already stored")
        (entry,) = await entries(two, "tag=docs")
        assert entry["age_s"] > 0


async def entries(served: Served, query: str) -> list[dict[str, Any]]:
    async with served.session.get(f"{served.admin_url}/admin/cache/entries?{query}") as response:
        return list((await response.json())["entries"])


async def test_import_says_which_lines_it_refused_and_why(served: Served, nearhit: Nearhit, tmp_path: Path) -> None:
    await served.chat("alpha")
    file = tmp_path / "answers.jsonl"
    await nearhit("export", "--out", file, admin=served.admin_url)
    await nearhit("purge", "--all", admin=served.admin_url)
    good = json.loads(file.read_text())
    faulty = [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ({**good, "expires": good["created"] - 1}, "expires: the entry has expired"),
        (
            {**good, "created": good["created"] + 9e6, "expires": good["created"] + 9.1e6},
            "created: expected a time",
        ),
        ({**good, "fingerprint": "xyz"}, "fingerprint"),
        ({**good, "payload": []}, "payload: expected one body"),
        ({**good, "payload": ["{}"]}, "payload: expected a complete, successful answer"),
        ({**good, "payload": ["x" * 2_000_000]}, "payload: expected at most 1048576 bytes"),
        ({**good, "payload": [{"base64": "!"}]}, "payload: expected base64"),
        ({**good, "dialect": "latin"}, "dialect: expected one of anthropic, "),
        ({**good, "vector": "AAAA"}, "vector: expected 32-bit floats"),
        ({**good, "vector": "AAAAAA=="}, "vector: expected a vector of unit length"),
        ({**good, "extra": 1}, "extra: unknown key"),
        ({**good, "streamed": "no"}, "streamed: expected true or false"),
        ({key: value for key, value in good.items() if key != "scope"}, "'scope' is required"),
        ({**good, "created": float("nan")}, "not JSON"),
        ("x" * 8_000_000, "expected a line of at most"),
    ]
    text = [line if isinstance(line, str) else json.dumps(line) for line, _ in faulty]
    file.write_text("\n".join(["", json.dumps(good), *text, "", ""]))
    code, out, err = await nearhit("import", file, admin=served.admin_url)
    assert code == 1
    assert out.startswith(f"1 imported, 0 already stored, {len(faulty)} refused")
    said = err.splitlines()
    assert len(said) == len(faulty)
    for at, (_, sentence) in enumerate(faulty):
        assert said[at].startswith(f"{file}:{at + 3}: "), said[at]
        assert sentence in said[at]


async def test_questions_are_embedded_anew_where_the_embedder_is_another(
    served: Served, nearhit: Nearhit, tmp_path: Path
) -> None:
    await served.chat("how do I reset my password")
    file = tmp_path / "answers.jsonl"
    await nearhit("export", "--out", file, admin=served.admin_url)
    await nearhit("purge", "--all", admin=served.admin_url)
    line = json.loads(file.read_text())
    vector = np.zeros(7, dtype="<f4")
    vector[0] = 1.0
    line |= {"embedder": "of another kind", "vector": base64.b64encode(vector.tobytes()).decode()}
    file.write_text(json.dumps(line))
    assert json.loads((await nearhit("import", file, "--json", admin=served.admin_url))[1])["embedded"] == 1
    assert (await served.chat("how do I reset my password please")).cache_status.endswith("detail=semantic")


async def test_a_chat_export_is_a_data_set_to_train_with(served: Served, nearhit: Nearhit) -> None:
    await served.chat("alpha")
    await served.post("/v1/embeddings", {"model": "m", "input": "alpha"})
    code, out, _ = await nearhit("export", "--format", "chat", admin=served.admin_url)
    assert code == 0
    (line,) = out.splitlines()
    assert json.loads(line) == {
        "messages": [{"role": "user", "content": "alpha"}, {"role": "assistant", "content": "upstream answers: alpha"}]
    }


async def test_an_export_that_breaks_off_is_no_file(
    served: Served, nearhit: Nearhit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for question in ("alpha", "beta"):
        await served.chat(question)
    stored = served.gateway.removal.stored

    async def breaking(conditions: Any) -> AsyncIterator[Any]:
        async for each in stored(conditions):
            yield each
            raise StoreUnavailable("the store failed")

    monkeypatch.setattr(served.gateway.removal, "stored", breaking)
    code, _, err = await nearhit("export", "--out", tmp_path / "answers.jsonl", admin=served.admin_url)
    assert code == 1
    assert "the connection to the gateway" in err
    assert list(tmp_path.glob("answers*")) == []
