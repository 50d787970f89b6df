"""Gemini's content to and from the neutral form, which is OpenAI's chat."""
