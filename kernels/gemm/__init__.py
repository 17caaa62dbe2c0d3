"""Linears on a GPU whose rows don't depend on their batch."""
