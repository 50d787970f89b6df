"""Asynchronous inference: requests that are accepted at once and processed later.

`submission`, `retry_policy` and `batches` make decisions and do no I/O. `endpoint` and `batch_endpoint` accept
requests; `workers`, `runner`, `batch_runner` and `webhook_delivery` process them.
"""
