"""What keeps store and indexes in step: start, checkpoints, another model, eviction, removal, export."""
