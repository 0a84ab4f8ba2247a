"""What all tests share."""

from hypothesis import settings

# A machine that does something else at the same time must not fail a test.
settings.register_profile("rpcsys", deadline=None)
settings.load_profile("rpcsys")
