"""Shared fixtures. Real parts throughout: a real Valkey, FAISS, Triton, real sockets; the one scripted part is the
upstream endpoint, because what a test says must be known."""

pytest_plugins = [
    "tests.fixtures.triton",
    "tests.fixtures.kserve_triton",
    "tests.fixtures.real_servers",
    "tests.fixtures.gateways",
    "tests.fixtures.stores",
]
