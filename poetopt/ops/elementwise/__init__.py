"""Describes what computes each element by itself: arithmetic, activations, updates."""
