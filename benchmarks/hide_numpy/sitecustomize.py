"""Make numpy look as if it were not installed, in this interpreter and all it starts.

Python imports a module of this name at start-up when its folder is on PYTHONPATH.
"""

import importlib.abc
import sys


class _Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "numpy" or fullname.startswith("numpy."):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, _Hidden())
