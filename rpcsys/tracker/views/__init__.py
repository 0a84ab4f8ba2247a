"""The records as clients, summaries, pages and Prometheus get them. Nothing here changes anything."""
