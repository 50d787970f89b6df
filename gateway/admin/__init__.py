"""The admin port: metrics, dashboard, policies, keys, purge and explain."""
