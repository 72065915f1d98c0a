"""Edges to other tools; each module imports its own tool, and nothing imports them."""
