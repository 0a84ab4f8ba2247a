"""Fuzzing of every parser that reads what a stranger may send.

The sentence that is held: **it accepts, or raises a documented error**, in bounded memory. `targets` says what
is fed and which errors are documented, `mutations` how valid inputs are damaged, `runner` does it for a
while. ``python -m fuzz --seconds 60`` runs all of it; a failure prints the seed that makes it again.
"""
