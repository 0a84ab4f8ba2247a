"""ONNX models in onnx-ir's form: files, dataflow, types, stages, and onnxruntime's optimised models."""
