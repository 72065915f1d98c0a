"""Tests of lease(), acquire() and the Lease: entering, losing, leaving."""
