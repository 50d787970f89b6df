"""Shared fixtures. Real parts throughout: a real Valkey, FAISS, Triton, real sockets; the one scripted part is the
upstream endpoint, because what a test says must be known."""

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "pytester",
    "tests.fixtures.parallel",
    "tests.fixtures.quick",
    "tests.fixtures.stolen",
    "tests.fixtures.held_back",
    "tests.fixtures.accepting",
    "tests.fixtures.reports",
    "tests.fixtures.triton",
    "tests.fixtures.kserve_triton",
    "tests.fixtures.real_servers",
    "tests.fixtures.gateways",
    "tests.fixtures.stores",
    "tests.fixtures.store_cluster",
    "tests.fixtures.dashboard",
]

# No example is too slow: how long one takes says how busy the machine is. The suite draws the same examples each time,
# as Hypothesis' own profile for CI does, so that what fails is what was changed; "long" draws others, to find what is
# wrong all the same. "suite" draws 50 of each property, so that `make test` stays within minutes.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=50
)
settings.register_profile(  # pytest --hypothesis-profile=long
    "long", settings.get_profile("suite"), derandomize=False, max_examples=3_000
)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=10)  # make test-quick
settings.load_profile("suite")
