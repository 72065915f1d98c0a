"""Tests of the floor under all fences: pruning rows, and lifting fences after a failover."""
