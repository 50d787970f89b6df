"""The newest SDKs of OpenAI and Anthropic before the gateway: the same calls twice."""

import sys

import anthropic
import openai

url = sys.argv[1]
TOOL = {"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}
ASK = [{"role": "user", "content": "Which ports?"}]
o = openai.OpenAI(base_url=f"{url}/v1", api_key="sk", max_retries=0)
a = anthropic.Anthropic(base_url=url, api_key="sk", max_retries=0)
for _ in range(2):
    print("chat", o.chat.completions.create(model="m", messages=ASK).choices[0].message.content)
    chunks = list(o.chat.completions.create(model="m", messages=ASK, stream=True))
    print("chat-stream", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
    with o.chat.completions.stream(
        model="m",
        messages=[{"role": "user", "content": "call the tools"}],
        tools=[{"type": "function", "function": TOOL}],
    ) as events:
        message = events.get_final_completion().choices[0].message
    print("tools", [(t.id, t.function.name, t.function.arguments) for t in message.tool_calls])
    print("responses", o.responses.create(model="m", input="Which ports?").output_text)
    with o.responses.stream(model="m", input="Which ports?") as events:
        print("responses-stream", events.get_final_response().output_text)
    print("embeddings", [e.embedding for e in o.embeddings.create(model="m", input=["a", "bb"]).data])
    whole = a.messages.create(model="c", max_tokens=9000, messages=ASK)
    print("messages", [b.model_dump() for b in whole.content], whole.usage.output_tokens)
    with a.messages.stream(
        model="c",
        max_tokens=9000,
        messages=[{"role": "user", "content": "think and call"}],
        thinking={"type": "enabled", "budget_tokens": 2000},
        tools=[{"name": "weather", "input_schema": TOOL["parameters"]}],
    ) as events:
        final = events.get_final_message()
    print("messages-stream", [b.model_dump() for b in final.content], final.stop_reason, final.usage.output_tokens)
