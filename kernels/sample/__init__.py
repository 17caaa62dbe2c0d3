"""Choose the next token of a sequence from its logits (README.md has the mathematics)."""
