"""What tracker and proxy share beyond :mod:`rpcsys.serve`: the event loop, accepting, and HTTP for people and probes."""
