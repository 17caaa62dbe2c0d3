"""Memory for keys and values: who holds which page, and what text lies in it."""
