"""Routing and admission of many workers in simulated time."""
