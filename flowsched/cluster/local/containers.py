"""Containers on this machine: which engine runs them, the options of each, and the containers that are left behind.

An engine is podman, docker or apptainer, by its command line. Runners start one command of it for each step (`runner.engine`);
here is what only the service can say: options, mounts, where an image comes from. See docs/containers.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from flowsched.cluster.local.orders import cpu_limit
from flowsched.cluster.local.runner.engine import ask
from flowsched.cluster.node.container_paths import Refusal, SharedVolume, lay_out
from flowsched.executor.protocol import Pod

Choice = Literal["auto", "docker", "podman", "apptainer", "none"]
#: In the order in which `auto` tries them: with the first, tasks stay below their runners, and outputs are their owner's.
ENGINES: Final = ("podman", "docker", "apptainer")
CHOICES: Final[tuple[str, ...]] = ("auto", "docker", "podman", "apptainer", "none")
#: Of what the service's environment says, engines get these, and variables that begin with those.
_VARIABLES: Final = frozenset(
    (
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "TMPDIR",
        "TZ",
        "DBUS_SESSION_BUS_ADDRESS",
        "REGISTRY_AUTH_FILE",
    )
)
_PREFIXES: Final = (
    "XDG_", "CONTAINER", "DOCKER_", "STORAGE_", "APPTAINER_", "SINGULARITY_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
#: Where the runtimes look for devices by the Container Device Interface.
_CDI: Final = ("/etc/cdi", "/var/run/cdi")
#: Processes and threads of one container: half of the least number of processes of a Linux machine (`kernel.pid_max`). Docker
#: bounds none by default.
_PROCESSES: Final = 16_384
#: Before an option is tried for the second and last time.
AGAIN_S: Final = 1.0
#: The folders that `true` needs to run.
_PROGRAMS: Final = ("/usr", "/bin", "/lib", "/lib64")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}\Z")
#: All of this machine is to a task as a volume that it sees only what it asks for of.
_MACHINE: Final = (SharedVolume("", "/"),)
#: Below it containers have the folders that links of inputs lead to, where there are too many inputs to mount each.
_LINKED: Final = "/flowsched/linked"
#: The remedies for the words of an engine that does not work.
_REMEDIES: Final = (
    (
        "rlimit",
        'this machine may not raise limits: write default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"] below [containers] '
        "in containers.conf (or in the file that CONTAINERS_CONF names)",
    ),
    (
        "hybrid",
        'crun knows no mixed control groups: write runtime = "runc" below [engine] in containers.conf, and install runc',
    ),
    ("daemon running", "start the Docker daemon, or use podman"),
    (
        "permission denied",
        "let this user use it: the group docker, or for rootless podman entries in /etc/subuid and /etc/subgid",
    ),
    ("newuidmap", "install uidmap and give this user entries in /etc/subuid and /etc/subgid"),
)


@dataclass(frozen=True)
class Engine:
    """A container engine of this machine.

    Args:
        kind: podman, docker or apptainer.
        program: Its path.
        version: As it says.
        network: Which network containers get: `host`, `none`, or one that the engine knows by name.
        init: Whether it can put a process before the program that reaps what the program has left.
        bounded: Whether it holds containers to their memory and CPU.
    """

    kind: str
    program: str
    version: str = ""
    network: str = "host"
    init: bool = True
    bounded: bool = True

    @cached_property
    def env(self) -> dict[str, str]:
        """Its environment: the service's variables of engines, registries and proxies."""
        return {
            key: value for key, value in os.environ.items() if key in _VARIABLES or key.startswith(_PREFIXES)
        }

    def ask(self, *arguments: str) -> tuple[str, str]:
        """Run a command of it, in a thread. Returns its answer, and why it failed ("" = it did not)."""
        answer, errors, failed = ask((self.program, *arguments), self.env)
        return answer, errors if failed else ""

    def copies_images(self) -> bool:
        """Whether it has a storage without layers, where every container begins with a copy of its image. Blocks."""
        form = {"podman": "{{.Store.GraphDriverName}}", "docker": "{{.Driver}}"}.get(self.kind)
        return form is not None and self.ask("info", "--format", form)[0].strip() == "vfs"

    # --- orders of runners -----------------------------------------------------------------------------------

    def order(self, root: Path, pod: Pod, *, gpus: Sequence[int] | None) -> dict[str, Any]:
        """The engine's part of a runner's order, see `runner.engine.Engine`.

        Args:
            root: Of the cluster.
            pod: The pod that is to run.
            gpus: The devices that its containers get; None = none are put into containers here.
        """
        return {
            "kind": self.kind,
            "program": self.program,
            "env": self.env,
            "options": self._apptainer(gpus) if self.kind == "apptainer" else self._options(root, pod, gpus),
            "name": container_name(root, pod.name),
            "bounded": self.bounded,
        }

    def _options(self, root: Path, pod: Pod, gpus: Sequence[int] | None) -> list[str]:
        """Of `docker run` and `podman run`."""
        # A task's files belong to the account of the service. Rootless podman has it as the user 0 of its containers.
        user = "0:0" if self.kind == "podman" else f"{os.geteuid()}:{os.getegid()}"
        options = ["--network", self.network, "--user", user, "--security-opt", "no-new-privileges"]
        if self.kind == "podman":
            options += ["--security-opt", "label=disable"]  # of the user's own folders no label is changed
        if self.init:
            options.append("--init")
        memory = pod.memory_limit_bytes or pod.memory_bytes
        if self.bounded and memory:
            options += ["--memory", f"{memory}b", "--memory-swap", f"{memory}b", "--shm-size", f"{memory}b"]
        if self.bounded:
            options += ["--pids-limit", str(_PROCESSES)]
        cpu = cpu_limit(pod)
        if self.bounded and cpu:
            options += ["--cpus", f"{cpu / 1000:g}"]
        for device in gpus or ():
            options += ["--device", f"nvidia.com/gpu={device}"]
        for key, value in labels(root, pod.name).items():
            options += ["--label", f"{key}={value}"]
        return [
            *options,
            "--label",
            f"flowsched.workflow={pod.workflow}",
            "--label",
            f"flowsched.stage={pod.stage}",
        ]

    def _apptainer(self, gpus: Sequence[int] | None) -> list[str]:
        """Of `apptainer exec`: nothing of the host is seen but what is mounted."""
        network = [] if self.network == "host" else ["--net", "--network", self.network]
        return ["--containall", "--no-eval", "--writable-tmpfs", *network, *(["--nv"] if gpus else [])]

    # --- images ----------------------------------------------------------------------------------------------

    def find_image(self, image: str, store: Path) -> Image | None:
        """An image that is on this machine; None = it is not. Blocks."""
        if self.kind == "apptainer":
            path = _sif_path(image, store)
            return Image(image, str(path), "", path.stat().st_size) if path.is_file() else None
        answer, why = self.ask("image", "inspect", "--", image)
        if why:
            return None
        facts: dict[str, Any] = json.loads(answer)[0]
        digests = facts.get("RepoDigests") or []
        digest = next((d.partition("@")[2] for d in digests if d.partition("@")[0] in image), "")
        digest = (
            digest
            or (digests[0].partition("@")[2] if digests else "")
            or f"sha256:{facts['Id'].removeprefix('sha256:')}"
        )
        return Image(image, image, digest, int(facts.get("Size") or 0))

    def pull_command(self, image: str, store: Path) -> list[str]:
        """The command that brings an image here."""
        if self.kind == "apptainer":
            store.mkdir(parents=True, exist_ok=True)
            return [self.program, "pull", "--force", str(_sif_path(image, store)), f"docker://{image}"]
        return [self.program, "pull", "--", image]

    # --- what is left ----------------------------------------------------------------------------------------

    def containers(self, root: Path) -> list[tuple[str, str]]:
        """(name of the container, name of the attempt) of all that are there for a root. Blocks.

        Raises:
            OSError: The engine does not say.
        """
        if self.kind == "apptainer":
            return []
        attempt = "index .Labels" if self.kind == "podman" else ".Label"
        form = f'{{{{.Names}}}} {{{{{attempt} "flowsched.attempt"}}}}'
        of_root = f"label=flowsched.root={mark_of(root)}"
        answer, why = self.ask("ps", "--all", "--filter", of_root, "--format", form)
        if why:
            raise OSError(f"{self.kind} ps: {why}")
        found = (line.split() for line in answer.splitlines())
        return [(words[0], words[1]) for words in found if len(words) == 2]


class Image(msgspec.Struct, frozen=True):
    """An image on this machine.

    Args:
        name: As the task names it.
        run: As the engine is told it: the name, or the path of a file.
        digest: Of what a registry has, or of the image itself if it comes from none.
        size_bytes: On this machine's disk.
    """

    name: str
    run: str
    digest: str
    size_bytes: int


def find_engine(choice: str, network: str = "host") -> tuple[Engine | None, list[str]]:
    """The engine that works here, and why others do not. Blocks, for a second or a few: it runs containers.

    Args:
        choice: One of `CHOICES`.
        network: See `Engine`.
    """
    reasons: list[str] = []
    for kind in ENGINES if choice == "auto" else () if choice == "none" else (choice,):
        engine, why = _tried(kind, network)
        if engine is not None:
            return engine, reasons
        reasons.append(f"{kind}: {why}")
    return None, reasons


def _tried(kind: str, network: str) -> tuple[Engine | None, str]:
    program = shutil.which(kind)
    if program is None:
        return None, "it is not installed"
    engine = Engine(kind, program, network=network)
    version, why = engine.ask("version" if kind == "docker" else "--version")
    if why:
        return None, _advised(why)
    found = re.search(r"\d+\.[\w.~+-]+", version)
    engine = Engine(
        kind, program, found.group().rstrip(",") if found else "", network, bounded=kind != "apptainer"
    )
    if kind != "podman":
        return engine, ""
    limits, init = ("--memory", "64m", "--cpus", "1", "--pids-limit", "64"), ("--init",)
    why = ""
    for options in ((*limits, *init), limits, init, ()):
        bounded, reaps = options[: len(limits)] == limits, options[-1:] == init
        why, failed = _trial(engine, options)
        if failed and options:  # a busy machine must not cost all tasks of a service their limits
            time.sleep(AGAIN_S)
            why, failed = _trial(engine, options)
        if not failed and not (bounded and "ignored" in why):  # rootless podman goes on without limits
            return Engine(kind, program, engine.version, network, reaps, bounded), ""
    return None, _advised(why)


def _trial(engine: Engine, options: Sequence[str]) -> tuple[str, bool]:
    """Run a container of podman without an image, of this machine's programs. Returns its errors, and whether it failed."""
    with tempfile.TemporaryDirectory(prefix="flowsched-trial-") as folder:
        volumes = [f"--volume={path}:{path}:ro" for path in _PROGRAMS if os.path.isdir(path)]
        command = ["run", "--rm", "--network", "none", *options, *volumes, "--rootfs", folder, "true"]
        return ask((engine.program, *command), engine.env)[1:]


def _advised(why: str) -> str:
    """The words of an engine, with what to do about them."""
    words = " ".join(why.split())[-300:]
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in why.lower()), "")
    return f"{words}; {remedy}" if remedy else words


def mark_of(root: Path) -> str:
    """A word for a root, as no other root of this machine has it."""
    return blake2b(os.fsencode(root), digest_size=8).hexdigest()


def container_name(root: Path, attempt: str) -> str:
    """The name of the containers of an attempt; those of steps have a number behind it. Engines take no name twice."""
    name = attempt if _NAME.match(attempt) else blake2b(attempt.encode(), digest_size=16).hexdigest()
    return f"flowsched-{mark_of(root)}-{name}"


def labels(root: Path, attempt: str) -> Mapping[str, str]:
    """By which containers are found again."""
    return {"flowsched.root": mark_of(root), "flowsched.attempt": attempt}


def devices() -> bool:
    """Whether GPUs can be put into containers: their descriptions are where the Container Device Interface has them."""
    return any(
        "nvidia.com/gpu" in file.read_text(errors="replace")
        for folder in _CDI
        if os.path.isdir(folder)
        for file in Path(folder).iterdir()
        if file.suffix in (".yaml", ".json") and file.is_file() and os.access(file, os.R_OK)
    )


def _sif_path(image: str, store: Path) -> Path:
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", image)[-80:]
    return store / f"{blake2b(image.encode(), digest_size=8).hexdigest()}-{readable}.sif"


# ---- the paths of a task in images ----


def mounts_of(folder: Path, caches: Sequence[Path]) -> list[tuple[str, str, bool]]:
    """The paths of this machine in every container of an attempt: its working folder, and datasets to read.

    Args:
        folder: Of the attempt.
        caches: Of the nodes that its inputs are read from.
    """
    work = os.path.realpath(folder / "work")
    return [
        (work, str(folder / "work"), False),
        *((os.path.realpath(cache), str(cache), True) for cache in caches),
    ]


def layout_of(pod: Pod, staged: Mapping[str, str]) -> dict[str, Any] | Refusal:
    """Where the files of a container task lie, for its runner: see `runner.image_places`.

    Args:
        pod: With a container.
        staged: Name of an input of the stage -> its file or folder in a cache.
    """
    container = pod.container
    assert container is not None
    layout = lay_out(container, _MACHINE, shown=False)
    if isinstance(layout, Refusal):
        return layout
    mounts = {
        bind.path: (f"/{bind.inner}" if bind.shared is not None else bind.inner, bind.read_only)
        for bind in layout.mounts
    }
    view = dict(layout.view)
    copies = list(layout.copies)
    for placed in container.inputs:
        place = layout.inputs.get(placed.input) if placed.input is not None else None
        if place is None or placed.input is None:
            continue
        source = staged[placed.input]
        if any(apart == place for apart, _ in copies):  # for a folder of the user's
            copies = [(source if apart == place else apart, target) for apart, target in copies]
        else:
            path = "/" + os.path.normpath(placed.path).lstrip("/")
            mounts[path], view[path] = (source, True), source
    links = []
    for place, source in layout.links:
        folder, name = os.path.split(source)
        linked = f"{_LINKED}{folder}".rstrip("/")
        mounts[linked], view[linked] = (folder, True), folder
        links.append((place, f"{linked}/{name}"))
    return {
        "view": sorted(view.items(), key=lambda each: (-len(each[0]), each[0])),
        "mounts": [(place, path, read_only) for path, (place, read_only) in sorted(mounts.items())],
        "folders": list(layout.folders),
        "files": list(layout.files),
        "sources": list(layout.sources),
        "copies": copies,
        "links": links,
        "texts": [
            (layout.place(placed.path), placed.content)
            for placed in container.inputs
            if placed.content is not None
        ],
    }
