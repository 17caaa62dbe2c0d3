"""Decide which drafted tokens stand (README.md has the rules)."""
