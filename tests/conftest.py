"""What all tests share."""

import signal

from hypothesis import settings

# A machine that does something else at the same time must not fail a test.
settings.register_profile("rpcsys", deadline=None)
settings.load_profile("rpcsys")

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
