"""Real engines: the variables of a document arrive in its container, and do nothing outside of it."""

from __future__ import annotations

import json

from tests.containers.conftest import ContainerWorld
from tests.executors.executor_contract import pod

#: What engines and the system's loader read, and values that lines of files, command lines and shells change.
VARIABLES = {
    "LD_PRELOAD": "/no/such.so",
    "CONTAINER_HOST": "tcp://127.0.0.1:1",
    "DOCKER_CONTEXT": "another",
    "XDG_RUNTIME_DIR": "/no/such",
    "XDG_CONFIG_HOME": "/no/such",
    "TMPDIR": "/no/such",
    "GODEBUG": "x",
    "EMPTY": "",
    "KEY": "-----BEGIN-----\nabc\n-----END-----\n",
    "HASH": "a#b # c",
    "QUOTES": "\"a\" 'b' `c` $d \\e",
    "SPACES": "  a  ",
    "LONG": "x" * 100_000,
    "WORDS": "größer = 1; $(true)",
}
SAYS = "import json, os, sys; print(json.dumps({name: os.environ.get(name) for name in sys.argv[1:]}))"


async def test_every_variable_arrives_and_none_reaches_the_engine(container_world: ContainerWorld) -> None:
    """With CONTAINER_HOST podman asked another machine; LD_PRELOAD ran code as the service's user."""
    cluster, ear, _ = await container_world.open()
    await cluster.launch([pod("a", "python", "-c", SAYS, *VARIABLES, env=VARIABLES)])
    end = await ear.ended("a")
    errors, _ = await cluster.logs("a", "stderr", 0, 10_000)
    assert (end.exit_code, end.reason, end.message) == (0, "", ""), errors
    said, _ = await cluster.logs("a", "stdout", 0, 1_000_000)
    assert json.loads(said) == VARIABLES


async def test_a_variable_whose_name_no_shell_knows_arrives(container_world: ContainerWorld) -> None:
    """Kubernetes allows dots and dashes in names."""
    cluster, ear, _ = await container_world.open()
    await cluster.launch([pod("a", "python", "-c", SAYS, "a.b", "-c", env={"a.b": "dotted", "-c": "d"})])
    assert (await ear.ended("a")).exit_code == 0
    said, _ = await cluster.logs("a", "stdout", 0, 1000)
    assert json.loads(said) == {"a.b": "dotted", "-c": "d"}


async def test_the_variables_of_a_container_are_not_in_the_engines_processes(
    container_world: ContainerWorld,
) -> None:
    """Neither in their environment nor on their command line; nor has the task a descriptor of theirs."""
    cluster, ear, _ = await container_world.open()
    count = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd') if int(fd) > 2))"
    await cluster.launch([pod("a", "python", "-c", count, env={"SAID": "x"})])
    assert (await ear.ended("a")).exit_code == 0
    said, _ = await cluster.logs("a", "stdout", 0, 1000)
    assert said == b"[3]\n", "the listing's own"
