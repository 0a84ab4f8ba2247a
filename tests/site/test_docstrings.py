"""Docstrings become reStructuredText."""

from __future__ import annotations

import inspect

from docs.site import docstrings

TEXT = """Look at `Session`, ``x_``, `near`
and `not a name`.

    code = "with `marks`"

    more = 1

What there is:
- one, over
  two lines
- two

Attributes
----------
name : what it is,
    with `Tracker.request` in it
low, high : of |both|, *each*

Raises
------
UsageError : never
"""
EXPECTED = r"""Look at :py:obj:`Session <rpcsys.client.Session>`\ , ``x_``\ , :py:obj:`near`\  and ``not a name``\ .

::

    code = "with `marks`"

    more = 1

What there is:

* one, over two lines
* two

.. rubric:: Attributes

* ``name``: what it is, with :py:obj:`Tracker.request <rpcsys.client.Tracker.request>`\  in it
* ``low, high``: of \|both\|, \*each\*

.. rubric:: Raises

* ``UsageError``: never
"""


def test_text_code_lists_and_sections_keep_their_meaning() -> None:
    assert "\n".join(docstrings.restructured(TEXT.splitlines())) == EXPECTED


def test_each_public_name_has_a_docstring_and_one_place() -> None:
    assert docstrings.homes()["SessionLost"] == "rpcsys.errors.SessionLost"
    assert docstrings.homes()["connect"] == "rpcsys.client.connect"
    without = []
    for home in docstrings.homes().values():
        module, name = home.rsplit(".", 1)
        value = getattr(__import__(module, fromlist=[name]), name)
        without += [home] if callable(value) and not inspect.getdoc(value) else []
    assert without == []
