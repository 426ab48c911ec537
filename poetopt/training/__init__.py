"""Training for epochs with a plan: data in batches, learning rates, checkpoints, validation, the trained network.

`poetopt.api.trainer` puts them together.
"""
