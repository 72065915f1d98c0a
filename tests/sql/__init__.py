"""Tests of the statements in sql/, each on a real server."""
