"""Tests with real daemons: each daemon is a process, each connection a loopback socket."""
