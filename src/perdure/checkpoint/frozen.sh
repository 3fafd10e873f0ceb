#!/bin/sh
# Run by CRIU at each stage of a dump. At the one where all is written and the tasks still stand still, it wakes the process that
# started the dump and waits for its word; without one, since it said no or has ended, the dump fails and the tasks run again.
[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0
read -r go say <"$CRTOOLS_IMAGE_DIR/../criu/frozen" || exit 1
exec 3<"$go" && echo frozen >"$say" && read -r answer <&3
