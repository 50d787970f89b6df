"""Gemini's native protocol, for clients and for backends: content, whole and streamed, and embeddings.

The path names the model and the operation. Shapes follow https://ai.google.dev/api/generate-content and, for Vertex AI,
https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/inference.
"""
