"""Boards kept from a desk: the runtime packed, copied over ssh, installed, upgraded and removed.

``facts`` asks a board what it is, ``plan`` decides what that means and ``inventory`` what this desk remembers,
both without I/O of their own but for the one file; ``ssh`` runs OpenSSH's client, and ``keeper`` does the work.
"""
