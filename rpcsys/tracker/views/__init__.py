"""What is shown of the records: to clients, in summaries, on pages and to Prometheus. Nothing here changes anything."""
