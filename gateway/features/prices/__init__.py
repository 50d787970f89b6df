"""List prices of hosted models: a catalogue that is shipped as data, and what finds a model in it.

`gateway.upstream.tariffs` imports it for a backend at a provider's address, or with `price.catalogue`.
"""
