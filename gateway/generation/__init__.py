"""What a language model needs between its passes: prompts written, tokens chosen, texts put together. Pure."""
