"""The traffic log: records of requests on routes with `record`, for `nearhit simulate`."""
