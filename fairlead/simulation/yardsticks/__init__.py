"""Yardsticks: published policies, written anew from their papers, on the interface of our own."""
