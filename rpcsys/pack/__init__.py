"""Packs this machine's rpcsys and TVM's libraries into one archive, from which a board can serve."""
