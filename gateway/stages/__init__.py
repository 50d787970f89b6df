"""One file a stage; each is thin: I/O around the pure modules."""
