"""Quantizers."""
