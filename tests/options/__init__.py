"""Tests of settings and identity: everything that is checked before any I/O."""
