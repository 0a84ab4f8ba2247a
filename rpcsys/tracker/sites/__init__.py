"""Several sites, each a lab of its own, whose trackers ask each other for their clients (docs/sites.md).

Loaded with ``--site`` only. `state` decides, `service` does.
"""
