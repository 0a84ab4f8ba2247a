"""Fuzzing of the parsers of received bytes.

The property: **a parser accepts its input or raises a documented error**, in bounded memory. `targets` has the parsers
and their documented errors, `mutations` damages valid inputs, `runner` runs the targets for some time.
``python -m fuzz --seconds 60`` runs all targets; a failure prints the seed that reproduces it.
"""
