"""Tests of LeaseTable: creating, verifying, reading, closing, and what a pool has of it."""
