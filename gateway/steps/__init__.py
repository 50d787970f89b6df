"""The steps of the pipeline, one file each. `gateway.pipeline` defines their order."""
