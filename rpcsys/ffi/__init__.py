"""The TVM-FFI C ABI through ctypes: native functions called from Python, and Python's from native code.

::

    abi        the structures, as C lays them out
    library    finding and loading libtvm_ffi and libtvm_runtime
    objects    what is reference-counted on the native side
    dtypes     element types by name
    memory     where an array of Python's lies
    tensors    arrays of Python as native ones and back
    dlpack     capsules: arrays of and for other libraries
    values     one value, either way
    containers tuples, lists and dicts
    functions  calls, either way, and their errors
    module     functions of a library by their symbols
    standin    what such a library needs of libtvm_ffi where there is none
    tvm        what libtvm_runtime adds: TVM's loaders and Relax

Importing this loads nothing: libraries are loaded when first needed. 64-bit and 32-bit alike,
little-endian. The ABI's facts are those of apache-tvm-ffi 0.1's ``c_api.h`` and of DLPack 1.
"""
