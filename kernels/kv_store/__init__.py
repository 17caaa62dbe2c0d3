"""Puts what attention keeps of a token into its slot: rotated keys and values, or a normed latent and its key."""
