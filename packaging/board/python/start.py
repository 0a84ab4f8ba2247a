"""Start the device server from this file's folder.

Until the version is checked, the code must be valid in any Python.
"""

import os
import sys

NEEDED = (3, 8)
HERE = os.path.dirname(os.path.realpath(__file__))


def drivers():
    """The flag that loads the packed drivers."""
    folder = os.path.join(os.path.dirname(HERE), "drivers")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return ["--load-library", ":".join(os.path.join(folder, name) for name in names)] if names else []


def expanded(arguments):
    """The arguments, with each ``@FILE`` replaced by the lines of FILE: the flags of an installed server."""
    found = []
    for argument in arguments:
        if argument.startswith("@"):
            with open(argument[1:]) as file:
                found += [line for line in file.read().splitlines() if line and not line.startswith("#")]
        else:
            found.append(argument)
    return found


def main():
    """The server's exit status."""
    if sys.version_info < NEEDED:
        text = "rpcsys-server: error: this is Python %d.%d; %d.%d or later is needed, such as RPCSYS_PYTHON=python3.9"
        return text % (sys.version_info[:2] + NEEDED)
    sys.path.insert(0, HERE)
    # At the end: an installed numpy comes first.
    sys.path.append(os.path.join(HERE, "numpy_stub"))
    try:
        arguments = drivers() + expanded(sys.argv[1:])
    except (OSError, ValueError) as error:
        return "rpcsys-server: error: cannot read the flags: %s; give @FILE, with a flag on each line" % error
    if "--self-test" in arguments:
        from rpcsys import selftest

        return selftest.run(arguments)
    try:
        from rpcsys.server.__main__ import main as serve
    except ImportError as error:
        text = (
            "rpcsys-server: error: this Python lacks a part of its standard library (%s); see rpcsys-server --self-test"
        )
        return text % error
    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main())
