"""Accounting history: many sources into one table of attempts; exposure, chains and workloads from that table; anonymise; simulate."""
