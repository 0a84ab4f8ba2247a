"""Packs this machine's rpcsys and TVM's libraries into one archive, from which a board can serve."""

from rpcsys import need_host

need_host(__name__)
