"""Shared fixtures. Real parts throughout: a real Valkey, FAISS, Triton, real sockets; the one scripted part is the
upstream endpoint, because what a test says must be known."""

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "pytester",
    "tests.fixtures.parallel",
    "tests.fixtures.stolen",
    "tests.fixtures.reports",
    "tests.fixtures.triton",
    "tests.fixtures.kserve_triton",
    "tests.fixtures.real_servers",
    "tests.fixtures.gateways",
    "tests.fixtures.stores",
    "tests.fixtures.store_cluster",
    "tests.fixtures.dashboard",
]

# No example is too slow: how long one takes says how busy the machine is.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("suite"), max_examples=3_000)  # pytest --hypothesis-profile=long
settings.load_profile("suite")
