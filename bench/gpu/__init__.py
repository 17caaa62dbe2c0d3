"""Stages for a machine with a GPU: torch, triton and little else; nothing here imports what carries messages."""
