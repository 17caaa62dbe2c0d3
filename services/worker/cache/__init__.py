"""Memory for keys and values: which sequences hold a page, and which text it stores."""
