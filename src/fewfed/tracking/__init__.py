"""Rounds shown by other programs: TensorBoard, MLflow, Weights & Biases."""
