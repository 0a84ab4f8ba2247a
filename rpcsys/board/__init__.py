"""Boards kept from one machine: the runtime packed, copied over ssh, installed, upgraded and removed."""
