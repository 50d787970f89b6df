"""Anthropic's messages to and from the neutral form, which is OpenAI's chat."""
