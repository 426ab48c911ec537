"""Normalizations of batches, layers, groups and planes."""
