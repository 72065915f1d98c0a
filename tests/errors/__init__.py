"""Tests of the errors."""
