"""Multi-head latent attention over pages."""
