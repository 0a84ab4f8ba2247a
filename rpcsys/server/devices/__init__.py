"""Finds the devices of this board: each driver is asked in a process of its own, since one may hang or crash."""
