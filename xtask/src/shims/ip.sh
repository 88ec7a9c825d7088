#!/bin/sh
# ip [-4|-6] route add|change|replace DESTINATION WORDS...; ip tcp_metrics flush: of this run.
all="ip $*"
case $1 in
-4 | -6) shift ;;
esac
case "$1 $2" in
"route add" | "route change" | "route replace")
    to=$(printf '%s' "${3%%/*}" | tr A-F a-f)
    shift 3
    echo "$*" >"$SOFTNET_PACKETDRILL_SETTINGS/route/$to"
    ;;
"tcp_metrics flush" | "route flush") ;;
*)
    echo "$all: not understood here" >&2
    exit 1
    ;;
esac
