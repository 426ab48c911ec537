"""What to ask of PyTorch's two exporters, where what they did to a module can't be undone here.

The newer one (`dynamo=True`, the default) knows BatchNormalization in evaluation mode alone, whatever `training` says.
"""

UNFOLDED = "torch.onnx.export(..., dynamo=True, optimize=False)"
"""What keeps parameters as the module has them."""
KEEPS_NAMES = "torch.onnx.export(..., dynamo=False, do_constant_folding=False)"
"""What keeps the module's names in the older exporter."""
TRAINING = "torch.onnx.export(..., dynamo=False, training=torch.onnx.TrainingMode.TRAINING)"
"""What keeps BatchNormalization as it is while the module trains."""
TRAINING_SHORT = "dynamo=False, training=TrainingMode.TRAINING"
"""The same beside an answer."""
