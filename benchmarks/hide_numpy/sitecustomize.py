"""Make numpy, and what needs it, look as if not installed, in this interpreter and all it starts.

Python imports a module of this name at start-up when its folder is on PYTHONPATH.
"""

import sys

HIDDEN = {"numpy", "ml_dtypes", "onnx", "onnxruntime", "tvm", "tvm_ffi"}


class _Hiding:
    """A finder of modules that overlooks some. Everything else it does as the finder it stands for."""

    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in HIDDEN:
            return None
        return self._finder.find_spec(fullname, path, target)


sys.meta_path[:] = [_Hiding(finder) for finder in sys.meta_path]
