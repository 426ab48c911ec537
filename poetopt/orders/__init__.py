"""Other orders of the operators: which are valid, the search for a better one, and solving with it."""
