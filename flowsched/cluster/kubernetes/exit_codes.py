"""Exit codes of the steps in a task's pod, as sysexits.h has them. Imports nothing: each step starts once or twice per task."""

DONE = 0
NOT_READY = 1
BAD_ORDER = 64
#: A path or file that a container task asks for cannot be had, and trying again is no use.
NOT_LAID = 65
INPUT_LOST = 66
UNREACHABLE = 75
