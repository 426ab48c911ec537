"""Softmax, cross-entropy and likelihood."""

LINEAR = "LinearCrossEntropy"
"""The fused op of a linear layer and the cross-entropy of its scores (`poetopt.autodiff.linear_loss`); no ONNX op."""
