"""`flowsched doctor`: what is there, what is missing, and what to do about it. Each check is a function of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import typer
from rich.table import Table
from rich.text import Text

from flowsched import tokens
from flowsched.app import Settings
from flowsched.cli.context import DONE, FAILED, options
from flowsched.cli.options import Output, runs, with_settings
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render
from flowsched.cli.printing.form import Form
from flowsched.cluster.local.containers import ENGINES, find_engine
from flowsched.cluster.local.runner.namespace import WHAT_TO_DO, refusal
from flowsched.cluster.registry import BUILT_IN, executors
from flowsched.errors import ConfigurationError, FlowschedError, NotLeader, Unauthorized, Unavailable

Mark = Literal["ok", "warn", "fail"]
_LOG: Final = (
    "read its log: where `flowsched serve` was started; `kubectl logs deploy/flowsched` on Kubernetes"
)
_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}

#: Extra -> the modules it brings.
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "postgresql": ("psycopg",),
    "objectstore": ("s3fs",),
    "kubernetes": ("kubernetes_asyncio",),
    "wdl": ("WDL",),
    "genomics": ("pysam",),
    "mpi": ("mpi4py",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, how it is, and what to do."""

    name: str
    mark: Mark
    found: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The root, database and service that the checks are about."""

    root: Path
    database: str
    url: str
    token: str | None


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
@with_settings("root", "database")
@runs()
async def doctor(ctx: typer.Context, settings: Settings, output: Output = Form.TABLE) -> int:
    """Check this machine, the database and the service."""
    opts = options(ctx)
    place = Place(settings.root, settings.url, opts.server or tokens.default_url(), opts.token)
    checks: list[Check] = []
    for examine in CHECKS:
        found = examine(place)
        checks += found if isinstance(found, list) else await found
    printed.many([asdict(check) for check in checks], output, lambda _: _table(checks))
    return FAILED if any(check.mark == "fail" for check in checks) else DONE


def _table(checks: Iterable[Check]) -> Table:
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True, min_width=12)
    made.add_column(overflow="fold")
    for check in checks:
        made.add_row(
            Text(check.mark, _STYLES[check.mark]), Text(check.name, "bold"), render.text(check.found)
        )
        if check.next:
            made.add_row("", "", render.text(f"next: {check.next}", "dim"))
    return made


def python(_: Place) -> list[Check]:
    """The interpreter, and what is optional; nothing is wrong without it."""
    made = [Check("python", "ok", f"{platform.python_version()} ({sys.executable})")]
    for extra, modules in EXTRAS.items():
        try:
            there = all(importlib.util.find_spec(name) for name in modules)
        except ModuleNotFoundError:  # of the package around it
            there = False
        step = "" if there else f"if you need it: pip install 'flowsched[{extra}]'"
        made.append(Check(extra, "ok" if there else "warn", "installed" if there else "not installed", step))
    return made


def installed_executors(_: Place) -> list[Check]:
    """Where tasks can run: flowsched's own executors, and those of other packages."""
    named, made = [], []
    for name, entry in executors().items():
        try:
            entry.load()
        except ConfigurationError as error:
            found = f"{name} of {entry.origin} cannot be loaded: {error}"
            made.append(Check("executor", "warn", found, "mend that package, or uninstall it"))
        else:
            named.append(name if name in BUILT_IN else f"{name} ({entry.origin})")
    if importlib.util.find_spec("kubernetes_asyncio") is None:
        named.remove("kubernetes")
    return [Check("executors", "ok", ", ".join(named)), *made]


def machine(place: Place) -> list[Check]:
    """Cores, memory and the room for data."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    made = [Check("machine", "ok", f"{cores} cores, {render.size(pages)} memory, {platform.platform()}")]
    folder = place.root
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return [*made, Check("root", "fail", f"{place.root} cannot be written", "choose another --root")]
    free = shutil.disk_usage(folder).free
    mark: Mark = "warn" if free < 1 << 30 else "ok"
    step = "choose a --root on a larger disk" if mark == "warn" else ""
    return [*made, Check("root", mark, f"{place.root}, {render.size(free)} free", step)]


def gpus(_: Place) -> list[Check]:
    """Devices that the kernel shows; a service on one machine uses as many as it is told to."""
    cards = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    if not cards:
        return [Check("gpus", "ok", "none in /dev: tasks that ask for GPUs wait for other nodes")]
    step = f"if tasks shall use them: flowsched serve --gpus {len(cards)}"
    return [Check("gpus", "ok", f"{len(cards)} of NVIDIA in /dev; a service has those of --gpus", step)]


def features(_: Place) -> list[Check]:
    """The kernel's means to confine tasks."""
    with tempfile.TemporaryDirectory(prefix="flowsched-doctor-") as folder:
        why = refusal(folder)  # tried as a runner would
    mounts = Check("namespaces", "ok", "private mounts, for tasks with paths of their own")
    if why:
        found = f"no private mounts ({why}): tasks with paths of their own are refused"
        mounts = Check("namespaces", "warn", found, WHAT_TO_DO)
    bound = "memory and cores" if hasattr(os, "sched_setaffinity") else "memory"
    found = f"tasks get no more {bound} than they may have; `disk` is only counted"
    return [mounts, _loopback(), Check("resources", "ok", found)]


_OVERLAY: Final = (
    "install fuse-overlayfs and remove this user's images (podman system reset), or run Linux 5.13 or later"
)


def containers(_: Place) -> list[Check]:
    """The engines for tasks that name an image, each tried as the service does."""
    made: list[Check] = []
    chosen = "; --containers auto takes it"
    for kind in ENGINES:
        engine, why = find_engine(kind)
        if engine is not None:
            lacks = ["a process that reaps what a program leaves (install catatonit)"] * (not engine.init)
            lacks += ["limits of memory and CPU (they need control groups of version 2)"] * (
                not engine.bounded
            )
            head = (
                f"{engine.version} runs containers{', without ' * bool(lacks)}{' and '.join(lacks)}{chosen}"
            )
            copies = engine.copies_images()
            head += "; each container copies its whole image (storage vfs)" * copies
            made.append(Check(kind, "warn" if copies else "ok", head, _OVERLAY * copies))
            chosen = ""
        elif not why[0].endswith("it is not installed"):
            found, sign, remedy = why[0].removeprefix(f"{kind}: ").rpartition("; ")
            made.append(Check(kind, "warn", found or remedy, remedy if sign else ""))
    none = f"none of {', '.join(ENGINES)} is installed: tasks that name an image are refused"
    return made or [
        Check("containers", "warn", none, "install podman, or start flowsched with --images ignore")
    ]


def _loopback() -> Check:
    """Members of a gang on one machine each get an address of their own."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", 0))
    except OSError:
        return Check("addresses", "warn", "127.0.0.2 cannot be used: gangs share one address",
                     "on macOS: sudo ifconfig lo0 alias 127.0.0.2")  # fmt: skip
    return Check("addresses", "ok", "127.0.0.0/8 for the members of gangs")


async def database(place: Place) -> list[Check]:
    """The database, looked at from beside: a running service is not disturbed."""
    from flowsched import app

    file = place.database.removeprefix("sqlite:///")
    there = file == place.database or await asyncio.to_thread(os.path.exists, file)
    if not there:  # other databases than SQLite say so themselves
        if tokens.url_of(place.root) is not None:
            step = "name the database as that service has it: --db URL, or FLOWSCHED_DATABASE"
            problem = f"{place.database} does not exist, and a service runs on {place.root}: it has another database"
            return [Check("database", "warn", problem, step)]
        return [Check("database", "ok", f"{place.database} does not exist yet; the first start makes it")]
    try:
        facts = await app.database_facts(place.database)
    except Unavailable as error:
        step = "see that the database runs and that its URL is right: --db URL, or FLOWSCHED_DATABASE"
        return [Check("database", "fail", str(error), step)]
    except FlowschedError as error:
        return [Check("database", "fail", str(error))]  # it says what to do
    return [_database(facts)]


def _database(facts: Mapping[str, object]) -> Check:
    from flowsched.app import schema_remedy

    head = f"{facts['database']} {facts.get('version', '')}, {facts.get('workflows', 0)} workflows, {facts['url']}"
    found, expected = facts["revision"], facts["expected_revision"]
    if found is None:
        return Check("database", "ok", f"{head}: empty; the first start makes the schema")
    if found != expected:
        differs, step, upgraded = schema_remedy(str(found))
        return Check("database", "warn" if upgraded else "fail", f"{head}: schema {found} {differs}", step)
    if facts.get("integrity_check", "ok") != "ok":
        return Check("database", "fail", f"{head}: {facts['integrity_check']}", "restore it from a backup")
    if facts.get("fsync", "on") != "on":
        return Check("database", "warn", f"{head}: fsync is off", "turn it on: accepted must mean durable")
    return Check("database", "ok", head)


async def service(place: Place) -> list[Check]:
    """The service, if one runs, its nodes, and its port if none does."""
    from flowsched.client import Client

    well = False
    try:
        async with Client(place.url, place.token, timeout=3, start_timeout=0) as client:
            well, missing = await client.ready()
            if not well:
                return [Check("service", "fail", f"{place.url}: {missing}", _LOG)]
            nodes = await client.nodes()
    except Unauthorized as error:
        step = (
            "--token TOKEN, or FLOWSCHED_TOKEN; the user who runs the service has it from `flowsched token`"
            if place.token is None
            else "leave the token out if you run the service yourself; else ask for it: `flowsched token` prints it there"
        )
        found = f"{place.url} runs: {error}; nodes were not looked at"
        return [Check("service", "fail", found, step)]
    except (NotLeader, Unavailable) as error:
        if not well:
            return [_port(place)]
        step = "it answers reads meanwhile; which process has nodes and reasons, and who takes over: docs/outages.md"
        return [Check("service", "warn", f"{place.url} answers: {error}", step)]
    except FlowschedError as error:
        step = "is it a flowsched? Name its URL: --server URL"
        return [Check("service", "fail", f"{place.url}: {error}", step)]
    ready = sum(node.ready for node in nodes)
    good = ready == len(nodes) > 0
    found, step = (f"{ready} ready", "") if good else (f"{ready} of {len(nodes)} ready", "flowsched nodes")
    return [
        Check("service", "ok", f"{place.url} is ready"),
        Check("nodes", "ok" if good else "warn", found, step),
    ]


def _port(place: Place) -> Check:
    from urllib.parse import urlsplit

    from flowsched.app import root_holder

    parts = urlsplit(place.url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        found = f"{host}:{port} is taken, and not by a service that answers ({error.strerror})"
        return Check("port", "warn", found, "choose another: flowsched serve --port N")
    if pid := root_holder(place.root):
        url = tokens.url_of(place.root)
        found = f"no service runs at {host}:{port}: process {pid} serves {place.root} " + (
            f"at {url}" if url else "at another address, which its log names"
        )
        return Check("port", "warn", found, f"name it: --server {url or 'URL'}, or FLOWSCHED_SERVER")
    return Check("port", "ok", f"{host}:{port} is free; no service runs there", "flowsched serve")


#: In the order of the lines.
CHECKS: Final[tuple[Callable[[Place], list[Check] | Awaitable[list[Check]]], ...]] = (
    python,
    installed_executors,
    machine,
    gpus,
    features,
    containers,
    database,
    service,
)
