"""Pooling, and planes that are resized."""
