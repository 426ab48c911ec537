"""Softmax, cross-entropy and likelihood."""
