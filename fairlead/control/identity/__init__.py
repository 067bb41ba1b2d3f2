"""Who a request comes from and what it may do: tokens, tenants' scopes and the vault of secrets."""
