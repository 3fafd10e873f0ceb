"""Freeze and thaw what a process tree holds on GPUs, through the CUDA driver's own checkpoint interface."""
