"""The first process of a server: it accepts connections, watches all others, and runs no user code."""
