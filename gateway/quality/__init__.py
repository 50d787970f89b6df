"""How often hits, and light answers, are wrong: measured, learnt from, kept."""
