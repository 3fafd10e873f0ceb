#!/bin/sh
# Run by CRIU at each stage of a dump or restore. At the one where all is done and the tasks still stand still, it wakes the process
# that started CRIU and waits for its word; without one, since it said no or has ended, CRIU fails: the tasks of a dump run again, those of
# a restore are ended. When a restore has made the PID namespace and no process of it has opened anything yet, its /proc is asked for.
# What is mounted on /proc from then on does not know that process: PERDURE_MEETING is the folder where to meet it, with the machine's.
# Nor does that of a PID namespace that is dumped from inside: there the pipes are CRIU's own, whose folder of images is one of its descriptors.
case "$CRTOOLS_SCRIPT_ACTION" in
    post-dump | post-restore) meeting=frozen ;;
    setup-namespaces) meeting=view && [ -n "$PERDURE_MEETING" ] || exit 0 ;;
    *) exit 0 ;;
esac
read -r pid go say <"${PERDURE_MEETING:-$CRTOOLS_IMAGE_DIR/../criu}/$meeting" || exit 1
proc=${PERDURE_MEETING:+$PERDURE_MEETING/proc}
case $pid in -) own=${CRTOOLS_IMAGE_DIR%/*} ;; *) own=${proc:-/proc}/$pid/fd ;; esac
exec 3<"$own/$go" && echo "$meeting $CRTOOLS_INIT_PID" >"$own/$say" && read -r answer <&3
