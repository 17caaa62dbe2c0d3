"""A toy model, drafters, and the count of what a verifier makes of them, against exact probabilities."""
