"""Verification strategies: what makes a drafted token stand. One file each and a line in registry.py."""
