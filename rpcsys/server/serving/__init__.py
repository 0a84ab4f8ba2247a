"""Model hosts: modules that are deployed on a server, and shared by many clients.

A deployed version has one process, its host, which the zygote forks; the supervisor hands it the connections of
clients that ask for it by name. `store` is what is deployed, on the disk; `hosting` decides what the supervisor does
about it, and `hosts` does it; `deployer` is the process of a client that deploys. A host is `host` (threads and sockets),
`desk` (which call runs when), `line` (one connection) and `calls` (running one).

Only servers with ``--deploy`` import any of this.
"""
