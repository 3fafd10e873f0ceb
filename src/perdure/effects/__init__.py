"""Do outside things once: an idempotency ledger and fencing for jobs that can run twice."""
