"""The TVM-FFI C ABI through ctypes: calls native functions from Python, and Python functions from native code.

Importing it loads no library; each library is loaded at its first use. 64-bit and 32-bit, little-endian.
The ABI's facts are from apache-tvm-ffi 0.1's ``c_api.h`` and from DLPack 1.
"""
