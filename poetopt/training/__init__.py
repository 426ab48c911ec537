"""Training for epochs by a plan: batches of data, learning rates, checkpoints, validation, the trained network.

`poetopt.api.trainer` combines them.
"""
