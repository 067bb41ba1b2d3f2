"""Authentication and authorisation: tokens, tenant scopes and the secret vault."""
