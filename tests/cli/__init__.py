"""Tests of the command line: the demo, its verdict and its server."""
