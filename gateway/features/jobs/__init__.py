"""Jobs, files and batches: requests that are accepted at once and processed later. `gateway.jobs` opens the feature.

`submission`, `retry_policy` and `batches` make decisions and do no I/O. `endpoint` and `batch_endpoint` accept
requests; `workers`, `runner`, `batch_driver` and `webhook_delivery` process them.
"""
