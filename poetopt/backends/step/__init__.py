"""A plan bound to addresses: which node runs on which bytes, and what moves where, without a runtime.

`poetopt.backends.step.places` says where everything lies, `poetopt.backends.step.program` runs it on this machine with
kernels that a runtime brings.
"""
