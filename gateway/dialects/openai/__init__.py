"""OpenAI's protocols: chat completions, completions, embeddings, and the Responses API."""
