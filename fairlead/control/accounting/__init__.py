"""Usage accounting: metering, budgets, shares, fairness, energy and the report."""
