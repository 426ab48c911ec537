"""Kernels by family; see `poetopt.runtimes.c.kernel`."""
