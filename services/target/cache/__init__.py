"""Memory for keys and values: who holds which page."""
