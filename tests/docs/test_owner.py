"""The page of a machine's owner, from the installation to a moved root, with folders of the test in place of the machine's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.docs.pages import ROOT, Reader

#: Stands in for systemd: runs the command line of the unit with its environment.
SYSTEMCTL = """#!/bin/bash
machine=MACHINE unit=MACHINE/units/flowsched.service
end() {
    [ -e $machine/pid ] || return 0
    kill "$(cat $machine/pid)"
    while kill -0 "$(cat $machine/pid)" 2> /dev/null; do sleep 0.1; done
    rm $machine/pid
}
case "$1" in
stop) end ;;
start|restart|enable)
    end
    for line in $(sed -n 's/^Environment=//p' $unit); do export "$line"; done
    export FLOWSCHED_ROOT=$machine$FLOWSCHED_ROOT
    while IFS= read -r line; do export "$line"; done < $machine/etc/environment
    install -d -m 700 "$FLOWSCHED_ROOT"
    command=$(sed -n 's/^ExecStart=.*flowsched serve/serve/p' $unit)
    eval "exec setsid $machine/bin/flowsched $command" > $machine/log 2>&1 &
    echo $! > $machine/pid
    until curl -sf -o /dev/null "$FLOWSCHED_SERVER/readyz"; do
        kill -0 "$(cat $machine/pid)" || { cat $machine/log; exit 1; }
        sleep 0.2
    done ;;
esac
"""
SUDO = """#!/bin/sh
[ "$1" = -u ] && shift 2
exec "$@"
"""


def test_the_owner_of_the_machine(tmp_path: Path) -> None:
    """Install, tokens, queues, work of a group, backup, restore, and the root on another disk."""
    machine, programs = tmp_path / "machine", tmp_path / "programs"
    for folder in (programs, machine / "units", machine / "bin", machine / "var", machine / "disk"):
        folder.mkdir(parents=True)
    systemctl = SYSTEMCTL.replace("MACHINE", str(machine))
    for name, text in (("sudo", SUDO), ("useradd", "#!/bin/sh\n"), ("systemctl", systemctl)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    reader = Reader(
        tmp_path,
        links=["deploy"],
        programs=[programs],
        replaced={
            "/usr/bin/python3 -m venv": "mkdir -p",
            "/opt/flowsched/bin/pip install '.[postgresql]'": f"install -D $(command -v flowsched) {machine}/opt/bin/flowsched",
            "/opt/flowsched": f"{machine}/opt",
            "/usr/local/bin/flowsched": f"{machine}/bin/flowsched",
            "/etc/flowsched": f"{machine}/etc",
            "/etc/systemd/system": f"{machine}/units",
            "/var/lib/flowsched": f"{machine}/var/lib/flowsched",
            "/var/backups": f"{machine}/var",
            "/disk/flowsched": f"{machine}/disk/flowsched",
        },
    )
    try:
        reader.follow(ROOT / "docs" / "owner.md")
    finally:
        subprocess.run([programs / "systemctl", "stop"], env=reader.environment, check=True, timeout=60)
    assert (machine / "disk" / "flowsched" / "flowsched.db").exists()
    assert "--take-over" not in (machine / "etc" / "environment").read_text()
