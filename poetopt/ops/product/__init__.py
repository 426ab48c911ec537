"""Products of matrices, Einsum, attention, Fourier transforms."""
