"""The command line: the only place where rooms are put together. One module a command group, no logic of its own."""
