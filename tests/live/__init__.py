"""Tests that start real daemons: every one a process, every connection a socket on loopback."""
