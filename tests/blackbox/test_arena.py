"""What the harness takes for a runner."""

from __future__ import annotations

from bench.blackbox.arena import runners_of


def test_a_process_in_the_middle_of_a_task_is_no_runner() -> None:
    """10 is the service, 20 its runner, 30 the shell. Its subshell 40 is in an exec, so only its child 50 is known as a task."""
    parents = {50: 40, 40: 30, 30: 20, 20: 10, 10: 1, 60: 1}
    assert runners_of({30, 50}, parents.__getitem__) == {20}
    assert runners_of({30, 40, 50}, parents.__getitem__) == {20}


def test_a_detached_child_of_a_dead_runner_has_no_runner() -> None:
    """Its parent is the first process."""
    assert runners_of({60}, {60: 1}.__getitem__) == set()
