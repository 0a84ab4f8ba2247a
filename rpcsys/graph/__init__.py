"""ONNX graphs on a desk: sample networks with real weights, and what they give when run here."""
