"""Tests of fenced writes: the guard, the transaction, the functions for users' own migrations."""
