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
    return _process_of(*known) if (known := found(folder)) else None


def runners_of_all(root: Path) -> list[int]:
    """For each attempt below a root that lives, the process that sees it through."""
    if not (root / "runners").is_dir():
        return []
    runners = Runners(root)
    runners.open()
    return [pid for life, runner in runners.unended() if (pid := _process_of(life, runner)) is not None]


def _process_of(life: Life, runner: Runner) -> int | None:
    if life.end is not None or life.is_lost or (pid := runner.pid()) is None:
        return None
    return life.own or pid


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
