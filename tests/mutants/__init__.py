"""Mutation testing: changes one place of the core at a time and asks whether the tests notice (`make mutants`)."""
