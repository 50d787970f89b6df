"""Access tokens for backends by OAuth's client credentials (RFC 6749, section 4.4).

A model gateway of a company often sits behind an API management that takes no keys. Such a token ends after minutes or
hours. No library is used: those for Python bring an HTTP client of their own, and this grant is one request.
"""
