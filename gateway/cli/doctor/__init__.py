"""`nearhit doctor`: looks at what a gateway needs, and says what is wrong and what to do.

`look_*` fetch facts; `verdicts` and `store` make findings of them, without I/O; `examine` puts both in order."""
