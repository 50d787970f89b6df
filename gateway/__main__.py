"""`python -m gateway` is `nearhit`."""

from gateway.cli import main

raise SystemExit(main())
