"""The operator's path on one machine with PostgreSQL, as docs/tutorials/operator.md says it."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import ROOT, Block, Reader
from tests.postgres import Server, binaries

PAGE = ROOT / "docs" / "tutorials" / "operator.md"
#: Starts the service as the unit does: with what the file of the environment says.
SYSTEMCTL = """#!/bin/bash
[ "$1" = restart ] || exit 0
export FLOWSCHED_DATABASE=$(sed -n 's/^FLOWSCHED_DATABASE=//p' {settings})
flowsched serve --root {root} $(sed -n 's/^OPTIONS=//p' {settings}) > {root}.log 2>&1 &
until curl -sf -o /dev/null $FLOWSCHED_SERVER/readyz; do sleep 0.2; done
"""
SUDO = """#!/bin/sh
[ "$1" = -u ] && shift 2
exec "$@"
"""


def test_the_path_of_one_machine(postgres_server: Server, tmp_path: Path) -> None:
    """Role and database, settings of the unit, a start, a check and a backup. The machine itself is left alone."""
    programs, settings, root = tmp_path / "programs", tmp_path / "environment", tmp_path / "root"
    programs.mkdir()
    for name, text in (("sudo", SUDO), ("systemctl", SYSTEMCTL.format(settings=settings, root=root))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    folder = postgres_server.folder
    reader = Reader(
        tmp_path,
        programs=[programs, binaries()],
        replaced={
            "psql --set": f"psql --host {folder} --username flowsched --dbname postgres --set",
            "CREATE ROLE flowsched": "CREATE ROLE boxer",  # the server has a role flowsched, which may do anything
            "DATABASE flowsched OWNER flowsched": "DATABASE box OWNER boxer",
            "flowsched:$password@127.0.0.1:5432/flowsched": f"boxer:$password@/box?host={folder}",
            "--cpu 14 --memory 56Gi --gpus 2": "--cpu 1 --memory 256Mi --gpus 2",
            "/etc/flowsched/environment": str(settings),
            "/var/lib/flowsched": str(root),
        },
    )

    def of_this_path(block: Block) -> bool:
        return block.language == "sh" and "sudo " in block.text

    reader.follow(PAGE, chosen=of_this_path)
    said = (reader.home / "output").read_text()
    assert "postgresql" in said
    assert (reader.folder / "flowsched.dump").read_bytes()[:5] == b"PGDMP"
    assert (reader.folder / "flowsched-root" / "token").exists()
    postgres_server.execute("DROP DATABASE box WITH (FORCE)")
    postgres_server.execute("DROP ROLE boxer")
