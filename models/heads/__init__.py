"""Drafters with a network of their own: what it consists of, in the words of models/spec.py, and how others name its
tensors. Executors run it (models/executor.py)."""
