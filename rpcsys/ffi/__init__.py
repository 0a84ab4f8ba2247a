"""The TVM-FFI C ABI through ctypes: native functions called from Python, and Python's from native code.

Importing this loads no library; each is loaded when it is first needed. 64-bit and 32-bit, little-endian.
The ABI's facts are those of apache-tvm-ffi 0.1's ``c_api.h`` and of DLPack 1.
"""
