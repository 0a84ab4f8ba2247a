"""Sphinx's settings for `make site`, which builds the documents as a web site (docs/decisions/0040)."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

import rpcsys  # noqa: E402

project = "rpcsys"
release = version = rpcsys.__version__
root_doc = "README"
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [".*", "build", "dist", "rpcsys", "tests"]  # nothing is searched there
extensions = ["myst_parser", "sphinx.ext.autodoc", "navigation", "docstrings", "linked_files", "command_reference"]

smartquotes = False  # they would change "" in a text
myst_heading_anchors = 4  # the anchors of a forge

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
#: What a class inherits from Python's own classes is not listed.
autodoc_default_options = {"members": True, "inherited-members": "BaseException,Enum,dict,int,list,str,tuple"}
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"rpcsys {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["opened_from_a_folder.js"]
html_copy_source = False
html_show_copyright = False
