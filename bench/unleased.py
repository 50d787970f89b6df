"""The gateway without leases, for `bench.crowd` to compare with: `python -m bench.unleased serve`."""

from __future__ import annotations

from gateway.cli import main
from gateway.composition import chains

if __name__ == "__main__":
    chains._lead = lambda *_: []
    raise SystemExit(main())
