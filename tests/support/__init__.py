"""Helpers of the test suite: servers, a faulty network, observers, processes."""
