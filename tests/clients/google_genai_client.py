"""Google's newest SDK before the gateway: the same calls twice."""

import asyncio
import sys

from google import genai
from google.genai import errors, types

client = genai.Client(api_key="sk", http_options=types.HttpOptions(base_url=sys.argv[1]))
TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="weather",
            description="The weather.",
            parameters=types.Schema(type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING)}),
        )
    ]
)
MANUAL = types.AutomaticFunctionCallingConfig(disable=True)
models = client.models


async def streamed() -> str:
    chunks = await client.aio.models.generate_content_stream(model="m", contents="Which ports?")
    return "".join([chunk.text or "" async for chunk in chunks])


for _ in range(2):
    whole = models.generate_content(
        model="m",
        contents="Which ports?",
        config=types.GenerateContentConfig(system_instruction="Be brief.", temperature=0.1, max_output_tokens=100),
    )
    print("content", repr(whole.text), whole.usage_metadata.total_token_count, whole.candidates[0].finish_reason)
    print("content-stream", repr(asyncio.run(streamed())))
    chat = client.chats.create(
        model="m", config=types.GenerateContentConfig(tools=[TOOL], automatic_function_calling=MANUAL)
    )
    called = chat.send_message("call the tools")
    calls = called.function_calls or []
    print("functions", [(each.name, each.args) for each in calls])
    results = [types.Part.from_function_response(name=each.name, response={"result": "fair"}) for each in calls]
    print("results", repr(chat.send_message(results).text))
    picture = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
    print("picture", repr(models.generate_content(model="m", contents=[picture, "What is it?"]).text))
    vectors = models.embed_content(model="m", contents=["a", "bb"]).embeddings
    print("embeddings", [each.values for each in vectors])
    try:
        models.generate_content(model="m", contents="?", config={"cached_content": "cachedContents/1"})
    except errors.ClientError as error:
        print("error", error.code, error.status, error.message)
