"""Runs the gateway without leases, for the comparison in `bench.coalescing`."""

from __future__ import annotations

from gateway import pipeline
from gateway.__main__ import main

if __name__ == "__main__":
    pipeline.PER_ROUTE = [each for each in pipeline.PER_ROUTE if getattr(each, "name", "") != "ClusterLease"]
    raise SystemExit(main())
