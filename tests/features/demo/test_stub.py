"""The endpoint without a model, as OpenAI's own client meets it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

QUESTION = [{"role": "user", "content": "Who are you?"}]


@pytest_asyncio.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "stub", "--listen", "127.0.0.1:0", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = (await asyncio.wait_for(process.stderr.readline(), 120)).decode()
    found = re.search(r"http://\S+/v1", said)
    assert found, said
    async with openai.AsyncOpenAI(base_url=found[0], api_key="none", max_retries=0) as asking:
        yield asking
    process.terminate()
    assert await process.wait() == 0


async def test_it_answers_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="m", messages=QUESTION)  # type: ignore[arg-type]
    assert whole.choices[0].message.content == "m would answer here; this is a stub. You asked: Who are you?"
    parts = [part async for part in await client.chat.completions.create(model="m", messages=QUESTION, stream=True)]  # type: ignore[call-overload]
    assert "".join(part.choices[0].delta.content or "" for part in parts).strip() == whole.choices[0].message.content


async def test_what_it_does_not_have_it_says_in_openais_shape(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as absent:
        await client.embeddings.create(model="m", input="text")
    assert "the stub answers POST /v1/chat/completions" in absent.value.message
    assert "not POST /v1/embeddings" in absent.value.message
    with pytest.raises(openai.BadRequestError, match="expected JSON with model and messages"):
        await client.chat.completions.create(model="m", messages=[])
