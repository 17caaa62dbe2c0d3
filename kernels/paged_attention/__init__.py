"""Attention over a paged KV cache: rows of any length, each seeing the positions before it."""
