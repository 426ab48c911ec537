"""Element-wise ops: arithmetic, activations, updates."""
