"""Drives pipelines: starts the stages that can run and records the ends of those that did."""
