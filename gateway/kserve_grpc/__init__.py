"""KServe's version 2 over gRPC: a front that hands every call to the same steps as the data port."""
