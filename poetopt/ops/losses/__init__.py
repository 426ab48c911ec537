"""Softmax, cross-entropy and likelihood."""

LINEAR = "LinearCrossEntropy"
"""The operator of a linear layer with the cross-entropy of its scores (`poetopt.autodiff.linear_loss`): no ONNX
op."""
