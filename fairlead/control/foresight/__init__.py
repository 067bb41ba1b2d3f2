"""Forecasts for queries: plays the policy forward, in a process of its own."""
