"""Pools as people have them: every kind goes through the whole life of a lease."""
