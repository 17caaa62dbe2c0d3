"""Mixture of experts: routing, and the experts' linears."""
