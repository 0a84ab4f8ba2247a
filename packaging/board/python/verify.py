"""Verify that this folder has the packed files, for this board. If not, print one line and exit with 1.

``verify.py name`` prints the version's name. ``verify.py image`` does not check the board's processor, for an image of
another board.
"""

import hashlib
import json
import os
import platform
import sys

HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
MANIFEST = os.path.join(HERE, "manifest.json")
BITS = 64 if sys.maxsize > 1 << 32 else 32
#: The prefix of a processor's name in Linux -> its name in the manifest.
FAMILIES = (("armv", "arm"), ("riscv", "riscv"))


def digest(path):
    """The SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def machine():
    """This board's processor, by its name in the manifest."""
    name = platform.machine()
    if name == "aarch64" and BITS == 32:
        return "arm"  # a 64-bit kernel under 32-bit programs
    return next((family for start, family in FAMILIES if name.startswith(start)), name)


def complaint(image=False):
    """The error, or None. For an ``image``, this machine's processor is not checked."""
    if sys.version_info < (3, 8):
        return "this is Python %d.%d; 3.8 or later is needed" % sys.version_info[:2]
    with open(MANIFEST) as file:
        manifest = json.load(file)
    # An archive without libraries runs on all kinds of boards.
    if not image and manifest["libraries"] and (manifest["machine"], manifest["bits"]) != (machine(), BITS):
        return "this is packed for %s (%d bits), and the board is %s (%d bits)" % (
            manifest["machine"], manifest["bits"], machine(), BITS
        )  # fmt: skip
    for name, wanted in sorted(manifest["files"].items()):
        path = os.path.join(HERE, name)
        if not os.path.isfile(path):
            return "%s is missing: copy or unpack it again" % name
        if digest(path) != wanted:
            return "%s is not what was packed: copy or unpack it again" % name
    return None


def main():
    """The exit status."""
    if sys.argv[1:] == ["name"]:
        with open(MANIFEST) as file:
            sys.stdout.write("%s-%s\n" % (json.load(file)["version"], digest(MANIFEST)[:8]))
        return 0
    try:
        wrong = complaint(image=sys.argv[1:] == ["image"])
    except (OSError, ValueError, KeyError) as error:
        wrong = "the manifest cannot be read (%s): copy or unpack it again" % error
    if wrong:
        sys.stderr.write("rpcsys: error: %s\n" % wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
