"""What tasks try in order to leave something behind, each beside the others, and what is known of them all the same (P2, P5)."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowsched.cluster.local.runner.kin import living
from tests.cluster import lives as journaled
from tests.cluster.conftest import RealWorld
from tests.cluster.test_crashes import until
from tests.cluster.test_detached import killed_at_the_end, lives
from tests.executors.executor_contract import pod, shell
from tests.soak import SOAK

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a subreaper")

NOBODY, NOBODYS = 65534, "another user without rights"
#: May read all files, for the interpreter lies where it lies; nothing else that another user may not.
AS_NOBODY = (
    *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
    *(f"--{which}=-all,+dac_read_search" for which in ("inh-caps", "ambient-caps", "bounding-set")),
)


#: Which end each user's tasks have; `make soak` takes all eight. A time-out takes 25 s, and the runner ends it like a cancel.
CASES = [("end", "this user"), ("cancel", "this user"), ("cancel", NOBODYS), ("memory", NOBODYS)]
if SOAK:
    CASES = list(itertools.product(("end", "cancel", "timeout", "memory"), ("this user", NOBODYS)))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("how", "user"), CASES)
def test_nothing_that_a_task_starts_outlives_it(
    tmp_path_factory: pytest.TempPathFactory, how: str, user: str
) -> None:
    """When an end is told, nothing of the attempt lives, whatever it has changed, and whatever it has done to its parent."""
    folder = tmp_path_factory.mktemp("escapes", numbered=True)
    prefix: tuple[str, ...] = ()
    if user != "this user":
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            pytest.skip("only root can become another user, by setpriv")
        for each in (folder, *folder.parents[:2]):
            each.chmod(0o711)
        os.chown(folder, NOBODY, NOBODY)
        prefix = AS_NOBODY
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.cluster.escape_driver", str(folder), how],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == 17
    assert {way: end for way, end in told.items() if end[2]} == {}
    expected = {"end": "", "cancel": "Released", "timeout": "Timeout", "memory": "OOMKilled"}[how]
    assert told["limits, group and priority"] == ["PodEnded", expected, 0]
    assert told["stops its parent"] == ["PodEnded", expected, 0]


async def test_a_task_that_kills_its_parent_is_lost_and_no_other_is(real_world: RealWorld) -> None:
    """Its processes are children of the runner then, which has no children but shims."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch(
        [pod("other", "sleep", "600"), shell("a", "setsid sleep 600 & kill -9 $PPID; sleep 600", index=1)]
    )
    gone = await ear.gone("a")
    assert (gone.reason, gone.started) == ("RunnerLost", True)
    await ear.started("other")
    runner = journaled.runner_of(real_world.attempt("other"))
    await cluster.launch([pod("b", index=2)])
    assert (await ear.ended("b")).exit_code == 0
    assert journaled.runner_of(real_world.attempt("other")) == runner
    await cluster.release(["other"], 0)
    assert (await ear.ended("other")).reason == "Released"


async def test_one_process_is_the_parent_of_one_task_after_another(real_world: RealWorld) -> None:
    """A task costs no fork of the runner."""
    cluster, ear, _ = await real_world.open()
    shims = set()
    for index, name in enumerate(("a", "b", "c")):
        await cluster.launch([pod(name, index=index)])
        await ear.ended(name)
        life = journaled.life_of(real_world.attempt(name))
        assert life is not None
        shims.add(life.shim)
    assert len(shims) == 1


async def test_what_has_killed_its_parent_and_the_runner_is_known_by_its_environment(
    real_world: RealWorld,
) -> None:
    """Then nothing leads to it but its environment."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([pod("a", "sleep", "600")])
    await until(lambda: (life := journaled.life_of(real_world.attempt("a"))) and life.pid)
    life, runner = journaled.found(real_world.attempt("a")) or (None, None)
    assert life is not None
    assert runner is not None
    with killed_at_the_end(life.pid):
        runner.signal(signal.SIGSTOP)
        os.kill(living(life.shim), signal.SIGKILL)
        runner.signal(signal.SIGKILL)
        assert (await ear.gone("a")).reason == "RunnerLost"
        assert not lives(life.pid)
