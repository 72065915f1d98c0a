"""Faults that users of locks and leases have met, one rule a test, each with several inputs or timings."""
