"""Runs stages side by side: scheduler, threads, results in order, statistics."""
