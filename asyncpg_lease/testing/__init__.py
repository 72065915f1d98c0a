"""Helpers for programs that are tested or shown with leases."""
