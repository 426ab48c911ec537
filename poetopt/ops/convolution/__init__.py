"""Convolutions of one to three dimensions, transposed ones, and what folds windows."""
