"""Prefixes (`sticky: prefix`): a prompt goes to the upstream that has the KV cache of its beginning."""
