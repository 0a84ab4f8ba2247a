"""What tracker and proxy share beyond :mod:`rpcsys.serve`: the loop, accepting, and HTTP for people and probes."""
