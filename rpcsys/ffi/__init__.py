"""The TVM-FFI C ABI through ctypes: native functions called from Python, and Python's from native code.

::

    abi        the structures, as C lays them out
    library    finding and loading libtvm_ffi and libtvm_runtime
    dtypes     element types by name
    tensors    arrays of Python as native ones and back, DLPack included
    objects    what is reference-counted on the native side
    values     one value, either way
    functions  calls, either way, and their errors
    module     functions of a library without any TVM library

Importing this loads nothing: libraries are loaded when first needed. 64-bit and 32-bit alike,
little-endian. The ABI's facts are those of apache-tvm-ffi 0.1's ``c_api.h`` and of DLPack 1.
"""
