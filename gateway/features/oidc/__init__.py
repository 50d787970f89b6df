"""OpenID Connect on the admin port: the check of tokens, and the keys of their issuer. `auth.oidc` turns it on."""
