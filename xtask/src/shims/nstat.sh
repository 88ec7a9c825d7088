#!/bin/sh
# nstat [-a] [-n] [-s] [-z] [NAME...]: counters of this run, since the last time or (-a) all.
now=$SOFTNET_PACKETDRILL_SETTINGS/nstat
before=$SOFTNET_PACKETDRILL_SETTINGS/nstat.before
absolute= quiet= keep= zeros= names=
for arg in "$@"; do
    case $arg in
    --*)
        echo "nstat: $arg is not understood here" >&2
        exit 1
        ;;
    -*)
        case $arg in *a*) absolute=1 ;; esac
        case $arg in *n*) quiet=1 ;; esac
        case $arg in *s*) keep=1 ;; esac
        case $arg in *z*) zeros=1 ;; esac
        ;;
    *) names="$names $arg" ;;
    esac
done
[ -f "$now" ] || : >"$now"
[ -f "$before" ] || : >"$before"
if [ -z "$quiet" ]; then
    echo "#kernel"
    awk -v absolute="$absolute" -v zeros="$zeros" -v names="$names" '
        BEGIN { split(names, list, " "); for (i in list) wanted[list[i]] = 1 }
        FILENAME == ARGV[1] { old[$1] = $2; next }
        {
            value = absolute ? $2 : $2 - old[$1]
            if ((value != 0 || zeros) && (names == "" || $1 in wanted))
                printf "%-32s%-16d 0.0\n", $1, value
        }' "$before" "$now"
fi
[ -n "$keep" ] || cp "$now" "$before"
