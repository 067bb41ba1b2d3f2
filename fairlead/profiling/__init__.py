"""Profiles models without running them in full, measures nodes, and knows common device types."""
