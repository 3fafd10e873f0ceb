"""Retry or resume, from evidence and costs, with the reasons. Pure: knows no file and no accounting system."""
