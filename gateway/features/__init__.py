"""The features: one folder each. A feature imports the core, never another feature; the core imports none.

The core finds a feature by its name (`gateway.extensions`), and imports it only if the configuration uses it.
"""
