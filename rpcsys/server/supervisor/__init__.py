"""The first process of a server: accepts connections, watches all other processes, and runs no user code."""
