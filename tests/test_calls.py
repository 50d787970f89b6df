"""What a request costs, in calls of functions: the same on any machine, unlike its time. Whoever makes a path dearer
sees it here, in the commit that does it; `python -m bench.calls --by-module "pass-through miss"` says where they are.

A path that has to cost more gets another number here, with a reason in the commit; one that got cheaper a lower one.
"""

from __future__ import annotations

import pytest

from bench.calls import count

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

# Of the gateway's own code, and with all libraries: as counted, and 3 % or two calls more.
MOST = {
    "exact hit": (27, 29),
    "pass-through miss": (155, 165),
    "unknown path": (157, 164),
    "exact hit, new bytes": (81, 89),
    "semantic hit (hash)": (210, 228),
    "chat miss, stored in the exact cache": (277, 300),
    "chat miss, stored in both caches": (319, 346),
    "live stream, 74 events": (1704, 1825),
}


async def test_no_request_calls_more_functions_than_it_did() -> None:
    counted = await count()
    assert counted.keys() == MOST.keys()
    dearer = {
        way: f"{calls.own} calls of our own, {calls.all} in all; at most {MOST[way]}; most of them in "
        + ", ".join(f"{module} {functions.total()}" for module, functions in calls.by_module()[:8])
        for way, calls in counted.items()
        if calls.own > MOST[way][0] or calls.all > MOST[way][1]
    }
    assert not dearer, "\n".join(f"{way}: {said}" for way, said in dearer.items())
