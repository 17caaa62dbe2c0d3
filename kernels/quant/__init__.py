"""Linears whose weights, and perhaps activations, are small whole numbers or 8-bit floats with scales."""
