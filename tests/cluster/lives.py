"""What the journals of a root say, for tests that kill what a service has started."""

from __future__ import annotations

from pathlib import Path

from flowsched.cluster.local import attempts
from flowsched.cluster.local.journals import Life
from flowsched.cluster.local.runners import Runner, Runners


def found(folder: Path) -> tuple[Life, Runner] | None:
    """What is known of the attempt with this folder."""
    root = folder.parents[3]
    if not (root / "runners").is_dir():
        return None
    runners = Runners(root)
    runners.open()
    return runners.find(folder.name) or runners.recall(folder.name)


def living_runners(root: Path) -> list[int]:
    """The processes of the runners that live."""
    folders = sorted((root / "runners").iterdir()) if (root / "runners").is_dir() else []
    return [pid for folder in folders if (pid := Runner(folder).pid()) is not None]


def life_of(folder: Path) -> Life | None:
    """The same without its runner."""
    return known[0] if (known := found(folder)) else None


def runner_of(folder: Path) -> int | None:
    """The process that sees an attempt through, if both live."""
    known = found(folder)
    if known is None or known[0].end is not None or known[0].is_lost:
        return None
    return known[0].own or known[1].pid() if known[1].pid() else None


def has_started(folder: Path) -> bool:
    """Whether its task may have begun."""
    life = life_of(folder)
    return life is not None and life.started_ms is not None


def has_ended(folder: Path) -> bool:
    """Whether its end is written."""
    life = life_of(folder)
    return life is not None and life.end is not None


def is_alive(folder: Path) -> bool:
    """Whether anything of it lives: what sees it through, or what it has left."""
    life = life_of(folder)
    return life is not None and (runner_of(folder) is not None or attempts.is_left(folder, life))
