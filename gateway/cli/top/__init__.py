"""`nearhit top`: a gateway that runs, on a terminal. `figures` and `view` are pure, `command` asks and draws.

Plain escape sequences: rich would bring 13 MB of packages (rich, pygments, markdown-it-py) for three tables."""
