"""KServe's version 2 over gRPC: a front that hands every call to the same stages as the data port."""
