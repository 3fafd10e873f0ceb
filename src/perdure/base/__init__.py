"""What every room may stand on: units, atomic files, settings, logging. No word of the domain. Imports only `errors`."""
