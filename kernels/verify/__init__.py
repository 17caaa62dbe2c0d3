"""Decide which draft tokens are accepted (README.md has the rules)."""
