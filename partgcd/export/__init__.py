"""Finished runs as bundles: one ONNX graph with all that is needed to answer, and the predictor that runs it."""
