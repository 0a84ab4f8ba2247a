"""Hide numpy, and the packages that need it, from this interpreter and from those that it starts.

Python imports a module with this name at its start if the module's folder is in PYTHONPATH.
"""

import sys

HIDDEN = {"numpy", "ml_dtypes", "onnx", "onnxruntime", "tvm", "tvm_ffi"}


class _Hiding:
    """A module finder that hides some packages and passes all other calls to ``finder``."""

    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in HIDDEN:
            return None
        return self._finder.find_spec(fullname, path, target)


sys.meta_path[:] = [_Hiding(finder) for finder in sys.meta_path]
