"""Policy files: schema, loading, checks, history, and the routes that they compile to."""
