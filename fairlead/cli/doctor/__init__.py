"""What ``fairlead doctor`` looks at: the machine, how tenants can be kept apart, the home, and the running platform."""
