"""Tests of what keeps a lease, and of what gives it up in time."""
