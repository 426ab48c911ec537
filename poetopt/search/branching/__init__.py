"""Branch and cut over a relaxation whose rows are separated at every node."""
