# One part of the pipeline: its name, and the folder of the run. `flaky` fails once, `broken` always, `slow` waits for the file `go`.
set -u
case $1 in
flaky) if mkdir "$2/tried"; then exit 3; fi ;;
broken) echo "part $1 is broken" >&2 && exit 3 ;;
slow) touch "$2/runs"; while ! test -e "$2/go"; do sleep 0.2; done ;;
esac
echo "$1"
