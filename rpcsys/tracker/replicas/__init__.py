"""Several trackers for one lab: one leads, the others follow its journal and take over (docs/replicas.md).

Loaded with ``--replicate`` only. `role` and `ledger` decide, `service` does.
"""
