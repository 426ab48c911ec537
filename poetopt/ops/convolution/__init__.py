"""Convolutions of one to three dimensions, transposed convolutions, and ops that fold windows."""
