"""What the kernel says of processes and of this machine, read from /proc. Called by everything that looks at a workload's tree.

`process` reads one process; `descriptors`, `mappings`, `network`, `mounts` its open files, memory, sockets and mounts; `machine`
the host; `holders` finds who has a file open.
Each module has pure functions (`parse_…`, from bytes) and thin ones that read. A process that vanishes in between is expected:
`errors.ProcessGone`. Names in /proc are chosen by whoever runs the process: they may hold line ends, backslashes, `` (deleted)`` and
bytes that are not text, which come back as surrogates (PEP 383).
"""
