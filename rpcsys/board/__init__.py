"""Boards kept from one machine: the runtime packed, copied over ssh, installed, upgraded and removed.

``facts`` asks a board what it is and decides what that means, ``inventory`` remembers boards, ``ssh`` runs OpenSSH's
client, ``package`` packs, and ``lifecycle`` does the work.
"""
