"""LlamaIndex before the gateway: the same calls twice."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike


def weather(city: str) -> str:
    """The weather."""
    return "sunny"


SERVER = {"api_base": sys.argv[1], "api_key": "sk"}
llm = OpenAILike(model="m", is_chat_model=True, max_retries=0, is_function_calling_model=True, **SERVER)
tool = FunctionTool.from_defaults(weather)
asked = [ChatMessage(role="user", content="Which ports?")]
for _ in range(2):
    print("chat", llm.chat(asked).message.content)
    print("stream", "".join(piece.delta or "" for piece in llm.stream_chat(asked)))
    called = llm.chat_with_tools([tool], user_msg="Weather?", allow_parallel_tool_calls=True)
    print("tools", llm.get_tool_calls_from_response(called))
embedder = OpenAILikeEmbedding(model_name="m", **SERVER)
for _ in range(2):
    print("embeddings", embedder.get_text_embedding("a"), embedder.get_text_embedding_batch(["a", "bb"]))
