"""Tests of cancellation at every await: nothing stays claimed, nothing is released too early."""
