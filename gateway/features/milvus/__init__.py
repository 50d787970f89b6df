"""The index in Milvus, outside of the process: `index: {adapter: milvus}`."""
