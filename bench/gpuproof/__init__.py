"""The proof on a real GPU: what is run, what is measured, and what is said of it. Called by `bench.gpu` and by `scripts/gpu-proof`.

A case is a function that gets a `Place` and returns a `Case`: passed, failed, or not run with the reason. Ratios are between what was done
in one run on one machine.
"""
