"""Who may do what: API keys that live in the store, roles, and the bound on guesses."""
