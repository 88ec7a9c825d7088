#!/bin/sh
# tc qdisc add|replace|change|del dev DEV root WORDS...: the device's queue in this run.
all="tc $*"
if [ "$1 $3 $5" != "qdisc dev root" ]; then
    echo "$all: not understood here" >&2
    exit 1
fi
verb=$2
shift 5
case $verb in
add | replace | change) echo "$*" >"$SOFTNET_PACKETDRILL_SETTINGS/qdisc" ;;
del | delete) echo pfifo >"$SOFTNET_PACKETDRILL_SETTINGS/qdisc" ;;
*)
    echo "$all: not understood here" >&2
    exit 1
    ;;
esac
