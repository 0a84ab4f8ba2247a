"""Stages at work side by side: scheduler, threads, results in order, statistics."""
