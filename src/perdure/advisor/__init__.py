"""Advice for a whole history: puts history, stats and decision together. The library's `advise` lives here; nothing below knows of it."""
