"""Who used what: the usage ledger, budgets, shares, fairness, energy and the report."""
