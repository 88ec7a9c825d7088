#!/bin/sh
# ethtool -K DEV (tso|gso|gro|lro) on|off...: whether super-segments stay whole in this run.
all="ethtool $*"
if [ "$1" != -K ]; then
    echo "$all: not understood here" >&2
    exit 1
fi
shift 2
while [ $# -ge 2 ]; do
    case "$1 $2" in
    "tso on" | "tso off" | "gso on" | "gso off") echo "$2" >"$SOFTNET_PACKETDRILL_SETTINGS/offload" ;;
    "gro on" | "gro off" | "lro on" | "lro off") ;;
    *)
        echo "$all: not understood here" >&2
        exit 1
        ;;
    esac
    shift 2
done
