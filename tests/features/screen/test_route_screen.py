"""Questions that nothing stored resembles go to their backend before they are embedded. With the real model."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.onnx.model_files import MODEL, STATIC_FILE, default_model_dir
from gateway.cache.links import link_of
from gateway.entries import Embedding, Entry
from gateway.features.screen.screen import Screen
from gateway.features.screen.threshold import KEPT
from tests.fixtures.gateways import BOTH_CACHES, Answer, Served, at_rest, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

POLICY = BOTH_CACHES.replace("max_wrong_hits: 1%", "max_wrong_hits: 5%")
ASKED, SAME = "How do I reset my password?", "How can I reset my password?"
FAR, SAME_AS_FAR = "Which wine goes well with grilled fish?", "Which wine goes best with grilled fish?"
CUT = "0x7f 1a-2b; " * 60 + "Which one is odd?"


class GatedEncoder:
    """Encodes while `open` is set, and keeps the texts."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.open = threading.Event()
        self.open.set()
        self.texts: list[str] = []

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        assert self.open.wait(60)
        self.texts += texts
        embeddings: list[Embedding] = self._encoder.encode(texts)
        return embeddings


class Screened:
    """A gateway with the real model, one stored answer, and a gate before the model."""

    def __init__(self, served: Served) -> None:
        self.served = served
        embedder: Any = served.gateway.parts.space.embedder
        self.encoder = embedder._encoder = GatedEncoder(embedder._encoder)

    @property
    def screen(self) -> Screen:
        screen = self.served.gateway.parts.space.screen
        assert isinstance(screen, Screen)
        return screen

    @property
    def let_go(self) -> float:
        return self.served.gateway.parts.telemetry.refusals.values.get(("default", "screen"), 0.0)

    @property
    def lost(self) -> float:
        return self.served.gateway.parts.telemetry.screen_lost_hits.values.get(("default",), 0.0)

    @property
    def late(self) -> dict[str, float]:
        values = self.served.gateway.parts.telemetry.late_vectors.values
        return {result: count for (_, result), count in values.items()}

    @property
    def indexed(self) -> int:
        return self.served.gateway.parts.space.index.size

    async def settled(self) -> None:
        self.encoder.open.set()
        await until(lambda: self.served.gateway.parts.space.late.idle)

    async def entry(self, question: str) -> Entry:
        parts = self.served.gateway.parts
        entries = [await parts.store.get(name) async for name, _ in parts.store.fingerprints()]
        return next(entry for entry in entries if entry is not None and entry.question == question)


@asynccontextmanager
async def screened_by(upstream: Upstream, path: Path, policy: str = POLICY, **embedder: Any) -> AsyncIterator[Screened]:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    config = config_of(path, backends, embedder={"adapter": "onnx", "timeout": "60s", **embedder})
    async with gateway_of(config, policy) as served:
        await at_rest(served)
        await served.chat(ASKED)
        served.awaits_vectors = False
        served.gateway.parts.telemetry.late_vectors.values.clear()
        yield Screened(served)


@pytest.fixture
async def screened(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Screened]:
    if not (default_model_dir() / MODEL / STATIC_FILE).is_file():
        pytest.skip("the model has no static vectors: run `nearhit model fetch`")
    async with screened_by(upstream, tmp_path) as screened:
        yield screened


def is_hit(answer: Answer) -> bool:
    return answer.cache_status == "nearhit; hit; detail=semantic"


async def test_a_far_question_is_answered_before_it_is_embedded(screened: Screened) -> None:
    screened.encoder.open.clear()
    assert (await screened.served.chat(FAR)).cache_status == "nearhit; fwd=miss; stored"
    assert screened.encoder.texts == [] and screened.indexed == 1 and screened.let_go == 1
    await screened.settled()
    assert screened.encoder.texts == [FAR] and screened.indexed == 2
    assert screened.late == {"stored": 1} and screened.lost == 0


async def test_other_words_find_its_answer_later(screened: Screened) -> None:
    screened.encoder.open.clear()
    first = await screened.served.chat(FAR)
    await screened.settled()
    hit = await screened.served.chat(SAME_AS_FAR)
    assert is_hit(hit) and hit.text == first.text
    assert screened.screen.threshold("default").observations == 1


async def test_its_entry_survives_a_restart_with_its_vector(upstream: Upstream, tmp_path: Path) -> None:
    async with screened_by(upstream, tmp_path) as screened:
        screened.encoder.open.clear()
        await screened.served.chat(FAR)
        await screened.settled()
        vectors = [each async for each in screened.served.gateway.parts.space.backing_store.vectors()]
        assert len(vectors) == 2
        assert (await screened.entry(FAR)).fingerprint in {each.fingerprint for each in vectors}


async def test_a_question_that_is_embedded_before_its_answer_is_stored_once(
    screened: Screened, upstream: Upstream
) -> None:
    upstream.gate.clear()
    answer = asyncio.create_task(screened.served.chat(FAR))
    await until(lambda: len(upstream.chats) == 2 and screened.encoder.texts == [FAR])
    await screened.settled()
    upstream.gate.set()
    await answer
    assert screened.indexed == 2 and screened.late == {}


async def test_a_near_question_is_looked_up(screened: Screened) -> None:
    assert is_hit(await screened.served.chat(SAME))
    assert screened.let_go == 0


@pytest.mark.parametrize("question", [FAR, "the quick brown fox jumps over the lazy dog. " * 40 + FAR])
async def test_a_question_of_an_empty_scope_is_let_go_and_no_neighbour_is_refused(
    screened: Screened, question: str
) -> None:
    """Such as each turn of a conversation, and a question about a long text."""
    screened.encoder.open.clear()
    await screened.served.chat(question, temperature=0.1)
    assert screened.encoder.texts == [] and screened.let_go == 0 and screened.indexed == 1
    await screened.settled()
    assert screened.encoder.texts == [FAR] and screened.late == {"stored": 1} and screened.indexed == 2


async def test_a_linked_question_gets_its_answer(screened: Screened) -> None:
    entry = await screened.entry(ASKED)
    screened.served.gateway.parts.memory.links.add([link_of(entry.scope, FAR, entry.fingerprint, 0.1).key()])
    assert is_hit(await screened.served.chat(FAR))


async def test_a_lost_hit_is_counted_and_moves_the_threshold(screened: Screened) -> None:
    threshold = screened.screen.threshold("default")
    for _ in range(KEPT):
        threshold.observe(0.999)
    threshold.value = 0.999  # beyond what the prior allows
    assert (await screened.served.chat(SAME)).cache_status == "nearhit; fwd=miss; stored"
    await screened.settled()
    assert screened.let_go == screened.lost == 1
    assert threshold.value < 0.999


async def test_a_hit_that_is_lost_as_its_entry_has_no_vector_yet_does_not_lower_the_threshold(
    screened: Screened,
) -> None:
    threshold = screened.screen.threshold("default").value
    screened.encoder.open.clear()
    for question in (FAR, SAME_AS_FAR):
        assert (await screened.served.chat(question)).cache_status == "nearhit; fwd=miss; stored"
    await screened.settled()
    assert screened.let_go == 2 and screened.lost == 1
    assert screened.screen.threshold("default").value >= threshold


async def test_an_entry_never_counts_as_lost_for_its_own_question(screened: Screened, upstream: Upstream) -> None:
    """It may be in the index by the time that the question is checked."""
    upstream.gate.clear()
    screened.encoder.open.clear()
    first, second = (asyncio.create_task(screened.served.chat(FAR + spaces)) for spaces in ("", " "))
    await until(lambda: len(upstream.chats) == 3)
    upstream.gate.set()
    await asyncio.gather(first, second)
    await screened.settled()
    assert screened.let_go == 2 and screened.lost == 0 and screened.late == {"stored": 2}


@pytest.mark.parametrize("question", [CUT, "如何重置我的密码？"])
async def test_a_question_that_the_model_does_not_read_whole_is_not_embedded(screened: Screened, question: str) -> None:
    assert (await screened.served.chat(question)).cache_status == "nearhit; fwd=miss; stored"
    await screened.settled()
    assert screened.encoder.texts == [] and screened.indexed == 1 and screened.let_go == 0


@pytest.mark.parametrize("directive", ["no-cache", "only-if-cached"])
async def test_a_request_with_that_directive_is_not_let_go(screened: Screened, directive: str) -> None:
    await screened.served.chat(FAR, headers={"cache-control": directive})
    assert screened.encoder.texts == [FAR] and screened.let_go == 0


async def test_a_client_that_leaves_before_its_answer_leaves_nothing(screened: Screened, upstream: Upstream) -> None:
    upstream.gate.clear()
    screened.encoder.open.clear()
    answer = asyncio.create_task(screened.served.chat(FAR))
    await until(lambda: len(upstream.chats) == 2)
    answer.cancel()
    await until(lambda: upstream.cancelled == 1)
    await screened.settled()
    assert screened.indexed == 1 and screened.late == {} and screened.let_go == 1


async def test_a_purge_by_similarity_finds_a_late_entry(screened: Screened) -> None:
    await screened.served.chat(FAR)
    await screened.settled()
    async with screened.served.session.post(
        screened.served.admin_url + "/admin/cache/purge", json={"like": SAME_AS_FAR, "min_similarity": 0.8}
    ) as answer:
        assert (await answer.json())["matched"] == 1
    assert screened.indexed == 1


async def test_the_gateway_ends_while_questions_wait(upstream: Upstream, tmp_path: Path) -> None:
    async with screened_by(upstream, tmp_path) as screened:
        screened.encoder.open.clear()
        await screened.served.chat(FAR)
    assert screened.late == {"dropped": 1}
    screened.encoder.open.set()


@pytest.mark.parametrize(
    ("former", "new"),
    [
        ("max_wrong_hits: 5%", "max_wrong_hits: 5%, screen: off"),
        ("max_wrong_hits: 5%", "max_wrong_hits: 5%, coalesce: on"),
        ("max_wrong_hits: 5%", "min_similarity: 0.3"),
        ("{backend: main}", "{light: main, large: main, escalate_above: 0.5}"),
    ],
)
async def test_a_route_that_needs_the_embedding_has_no_screen(
    upstream: Upstream, tmp_path: Path, former: str, new: str
) -> None:
    assert former in POLICY
    async with screened_by(upstream, tmp_path, POLICY.replace(former, new)) as screened:
        await screened.served.chat(FAR)
        assert FAR in screened.encoder.texts and screened.let_go == 0


async def test_recorded_traffic_has_every_vector(upstream: Upstream, tmp_path: Path) -> None:
    async with screened_by(upstream, tmp_path, POLICY + "    record: {share: 100%}\n") as screened:
        await screened.served.chat(FAR)
        assert screened.encoder.texts == [FAR] and screened.let_go == 0


async def test_a_model_without_static_vectors_has_no_screen(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "models" / MODEL
    shutil.copytree(default_model_dir() / MODEL, folder, ignore=shutil.ignore_patterns(STATIC_FILE))
    async with screened_by(upstream, tmp_path / "data", model_dir=str(folder.parent)) as screened:
        assert screened.served.gateway.parts.space.screen is None
        await screened.served.chat(FAR)
        assert screened.encoder.texts == [FAR]
    assert [line.message for line in caplog.records].count("no question is sent on before it is embedded") == 1


@pytest.mark.parametrize(("question", "words"), [(FAR, "nothing stored resembles"), (SAME, "there is a lookup")])
async def test_an_explanation_says_what_the_screen_decides(screened: Screened, question: str, words: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    async with screened.served.session.post(screened.served.admin_url + "/admin/explain", json=body) as answer:
        assert words in (await answer.json())["screen"]
    assert screened.let_go == 0
