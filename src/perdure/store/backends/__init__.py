"""Where a store's objects lie: one small contract (`contract.Backend`), and a module for each place."""
