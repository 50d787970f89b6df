"""Sets up the shared fixtures and the profiles of Hypothesis.

All parts are real: Valkey, FAISS, Triton and sockets. Only the upstream endpoint is scripted, because a test must know
its answers.
"""

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "pytester",
    "tests.fixtures.collection",
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

# There is no deadline for an example, because its time depends on the load of the machine. The suite draws the same
# examples each time, like Hypothesis' CI profile, so that a failure comes from a change. "long" draws new examples, to
# find other faults. "suite" draws 50 examples of each property, so that `make test` takes only minutes.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=50
)
settings.register_profile(  # pytest --hypothesis-profile=long
    "long", settings.get_profile("suite"), derandomize=False, max_examples=3_000
)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=10)  # make test-quick
settings.load_profile("suite")
