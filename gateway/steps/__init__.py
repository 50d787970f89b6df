"""The steps of the pipeline, one file each. `gateway.pipeline` has their order."""
