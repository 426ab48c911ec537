"""C headers of the kernels, as package data."""
