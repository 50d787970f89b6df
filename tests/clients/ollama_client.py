"""Ollama's newest client before the gateway: the same calls twice."""

import sys

import ollama

client = ollama.Client(host=sys.argv[1])
ASK = [{"role": "user", "content": "Which ports?"}]
for _ in range(2):
    print("chat", client.chat("m", ASK).message.content)
    print("chat-stream", "".join(part.message.content for part in client.chat("m", ASK, stream=True)))
    print("generate", client.generate("m", "Which ports?").response)
    print("embed", client.embed("m", ["a", "bb"]).embeddings)
