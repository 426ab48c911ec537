"""How onnxruntime's kernels run an operator slice by slice, with the bits of the whole."""
