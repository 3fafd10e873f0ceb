"""Worlds whose truth is known, for the parts of the benchmark and for tests. Not a part itself."""
