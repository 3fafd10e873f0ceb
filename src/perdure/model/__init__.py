"""Frozen records and ids that rooms hand to each other. Pure: no clock, no files, no logic beyond what a record says of itself."""
