#!/bin/sh
# Run by CRIU at each stage of a dump or restore. At the one where all is done and the tasks still stand still, it wakes the process
# that started CRIU and waits for its word; without one, since it said no or has ended, CRIU fails: the tasks of a dump run again, those of
# a restore are ended.
case "$CRTOOLS_SCRIPT_ACTION" in post-dump | post-restore) ;; *) exit 0 ;; esac
read -r go say <"$CRTOOLS_IMAGE_DIR/../criu/frozen" || exit 1
exec 3<"$go" && echo "frozen $CRTOOLS_INIT_PID" >"$say" && read -r answer <&3
