"""LangChain before the gateway: the same calls twice."""

import sys

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

url = sys.argv[1]


class Weather(BaseModel):
    city: str
    celsius: int


def weather(city: str) -> str:
    """The weather."""


llm = ChatOpenAI(model="m", base_url=url, api_key="sk", max_retries=0)
for _ in range(2):
    print("invoke", llm.invoke("Which ports?").content)
    print("stream", "".join(c.content for c in llm.stream("Which ports?")))
    print("tools", [c["args"] for c in llm.bind_tools([weather]).invoke("Weather in Paris and Rome?").tool_calls])
    print("structured", llm.with_structured_output(Weather).invoke("Weather?"))
r = ChatOpenAI(model="m", base_url=url, api_key="sk", max_retries=0, use_responses_api=True)
for _ in range(2):
    print("responses", r.invoke("Which ports?").text, "|", "".join(c.text for c in r.stream("Which ports?")))
e = OpenAIEmbeddings(model="m", base_url=url, api_key="sk", check_embedding_ctx_length=False)
for _ in range(2):
    print("embeddings", e.embed_documents(["a", "bb"]), e.embed_query("a"))
