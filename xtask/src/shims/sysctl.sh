#!/bin/sh
# sysctl [-q] [-w] [-n] [-e] NAME[=VALUE]...: settings of this run.
status=0
forgive=
names=
for arg in "$@"; do
    case $arg in
    -q | -w) ;;
    -n) names=no ;;
    -e) forgive=yes ;;
    -*)
        echo "sysctl: $arg is not understood here" >&2
        exit 1
        ;;
    *)
        name=${arg%%=*}
        path=$(printf '%s' "$name" | tr . /)
        file=$SOFTNET_PACKETDRILL_SETTINGS/$path
        if [ ! -f "$file" ]; then
            if [ -z "$forgive" ]; then
                echo "sysctl: $name: no such setting here" >&2
                status=255
            fi
        elif [ "$name" != "$arg" ]; then
            printf '%s\n' "${arg#*=}" >"$file"
        elif [ -n "$names" ]; then
            cat "$file"
        else
            echo "$name = $(cat "$file")"
        fi
        ;;
    esac
done
exit $status
