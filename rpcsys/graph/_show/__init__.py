"""Stages as tables and as a drawing."""
