"""What people get: terminal tables, CSV, Parquet and the offline HTML page, from a finished `Advice`. Decides nothing."""
