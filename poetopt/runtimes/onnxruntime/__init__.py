"""onnxruntime on the CPU: what its kernels allocate, and what they may write over."""
