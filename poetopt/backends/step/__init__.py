"""Plans bound to addresses: which node runs on which bytes, and which transfers move which tensors, without a runtime.

`poetopt.backends.step.places` computes every tensor's address. `poetopt.backends.step.program` runs the plan on this
machine with the kernels of a runtime.
"""
