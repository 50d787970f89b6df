"""LangChain's Anthropic client before the gateway: the same calls twice."""

import sys

from langchain_anthropic import ChatAnthropic

llm = ChatAnthropic(model="c", base_url=sys.argv[1], api_key="sk", max_retries=0, max_tokens=900)


def weather(city: str) -> str:
    """The weather."""


for _ in range(2):
    whole = llm.invoke("Which ports?")
    print("invoke", whole.content, whole.usage_metadata["total_tokens"])
    parts = list(llm.stream("Which ports?"))
    full = parts[0]
    for part in parts[1:]:
        full += part
    print("stream", full.content, full.usage_metadata["total_tokens"])
    print("tools", [c["args"] for c in llm.bind_tools([weather]).invoke("please call the weather").tool_calls])
