"""ONNX models in onnx-ir's form: files, dataflow, types, stages; and what onnxruntime makes of a model."""
