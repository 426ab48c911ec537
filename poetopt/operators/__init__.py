"""Facts of an operator that hold on every device and runtime: its work, its signature, what its nodes name."""
