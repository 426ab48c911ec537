"""A plan bound to addresses: which node runs on which bytes, and what moves where, without a runtime.

`poetopt.backends.step.parts` says it as data, for any machine. `poetopt.backends.step.program` runs it on this one,
with kernels that a runtime brings (`poetopt.backends.step.program`).
"""
