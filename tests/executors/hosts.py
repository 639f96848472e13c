"""An executor in one module: pods run on hosts that share a folder, such as the NFS of a laboratory. docs/executors.md explains it.

It reaches a host by a command: `ssh {host}`, or `sh -c` on one machine. The shared folder holds the truth, so a service that starts
anew finds everything there. The file `pid` decides whether a pod runs: the pod's shell makes it before the command begins. If the
service makes it first, the command never begins.

It limits neither CPU nor memory. It refuses container tasks, gangs and secrets, and publishes files only.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import msgspec

from flowsched.cluster.node.environment import Paths, environment
from flowsched.errors import ConfigurationError
from flowsched.executor import protocol as contract
from flowsched.executor.nodes import NodeInfo
from flowsched.workflow.resources import parse_bytes, parse_cpu

OPTIONS = {"hosts": "", "folder": "", "command": "ssh -o BatchMode=yes {host}", "cpu": "4", "memory": "8Gi"}
SCRIPT = """cd {work}
setsid sh -c 'set -C; echo $$ > ../pid && exec "$@"' - {command} > ../stdout 2> ../stderr
echo $? > ../code
kill -s KILL -- -$(cat ../pid)
mv ../code ../exit
"""
VOID = "void\n"
POLL_S = 0.05
LOOK_S = 5.0
TIMEOUT_GRACE_MS = 5000


async def open_hosts(options: Mapping[str, str], service: contract.ServiceContext) -> Hosts:
    """Make the executor. This is its entry point."""
    given = OPTIONS | dict(options)
    if not given["hosts"] or given.keys() != OPTIONS.keys():
        raise ConfigurationError(
            f"the options are {', '.join(OPTIONS)}, with hosts=A,B; found {dict(options)}"
        )
    return Hosts(given, Path(given["folder"] or service.root) / "hosts", service)


class Hosts(contract.Executor):
    """Pods as process groups of hosts."""

    def __init__(self, options: Mapping[str, str], folder: Path, service: contract.ServiceContext) -> None:
        cpu, memory = parse_cpu(options["cpu"]), parse_bytes(options["memory"])
        self.nodes = {name: NodeInfo(name, cpu, memory) for name in options["hosts"].split(",")}
        self.folder, self.command, self.now = folder, shlex.split(options["command"]), service.clock
        self.reports = asyncio.Queue[contract.ClusterEvent | None]()
        self.watched: dict[str, tuple[contract.Pod, asyncio.Task[None]]] = {}  #: pods that have not ended
        self.copies: set[asyncio.Task[None]] = set()
        self.copying = asyncio.Lock()
        self.unread: dict[Path, int] = {}  #: bytes that were copied for a pod that has not ended yet

    @property
    def identity(self) -> str:
        return f"hosts {','.join(self.nodes)} with {self.folder}"

    async def start(self) -> Sequence[NodeInfo]:
        for node in self.nodes:
            (self.folder / "data" / node).mkdir(parents=True, exist_ok=True)
            for path in sorted((self.folder / "data" / node).glob("[!.]*")):
                self.tell(contract.ReplicaSeen(unquote(path.name), node, path.stat().st_size))
        return list(self.nodes.values())

    async def events(self) -> AsyncIterator[Sequence[contract.ClusterEvent]]:
        while (event := await self.reports.get()) is not None:
            yield [event]

    async def stop(self) -> None:
        for task in (*self.copies, *(task for _, task in self.watched.values())):
            task.cancel()
        self.tell(None)

    # ---- pods ----

    async def launch(self, pods: Sequence[contract.Pod]) -> None:
        new = [pod for pod in pods if not self.home(pod.name).exists()]
        for pod in pods:
            if pod in new:
                (self.home(pod.name) / "work" / "tmp").mkdir(parents=True)
                write(self.home(pod.name) / "pod", msgspec.json.encode(pod, enc_hook=dict))
            else:
                self.watch(pod.name)
        await asyncio.gather(*(self.begin(pod, self.home(pod.name)) for pod in new))

    async def begin(self, pod: contract.Pod, home: Path) -> None:
        lost = [uri for given in pod.inputs for uri in given.uris if not self.data(uri, pod.node).exists()]
        if pod.node not in self.nodes or lost:
            reason = "InputLost" if pod.node in self.nodes else "NoSuchNode"
            self.void(contract.PodGone(pod.name, self.now(), reason, lost_inputs=tuple(lost)))
        elif pod.container or pod.gang or pod.secrets:
            why = "these hosts run no container tasks, no gangs, and no tasks with secrets"
            self.void(contract.PodEnded(pod.name, self.now(), 127, "StartFailed", why))
        else:
            write(home / "script", self.script(pod, home).encode())
            script = shlex.quote(str(home / "script"))
            if await self.on(pod.node, f"setsid sh {script} < /dev/null > /dev/null 2>&1 &") != 0:
                self.void(contract.PodGone(pod.name, self.now(), "NotStarted"))
            if not (home / "end").exists():
                self.watch(pod.name)

    async def adopt(self, pods: Sequence[contract.Pod]) -> None:
        for pod in pods:
            if not self.void(contract.PodGone(pod.name, self.now(), "NotLaunched")):
                self.watch(pod.name)

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        for name in names:
            if not self.void(contract.PodGone(name, self.now(), "Released")):
                self.watch(name)
                if name in self.watched:
                    await self.kill(self.watched[name][0], "Released", grace_ms)

    async def kill(self, pod: contract.Pod, reason: str, grace_ms: int) -> None:
        home = self.home(pod.name)
        write(home / "reason", reason.encode())
        group = f"-- -{await self.pid(home)}"
        hard = f"sleep {grace_ms / 1000}; [ -e {shlex.quote(str(home / 'exit'))} ] || kill -s KILL {group}"
        await self.on(pod.node, f"kill -s TERM {group} && ({hard}) > /dev/null 2>&1 &")

    def watch(self, name: str) -> None:
        """Report how a pod ended, or watch it until it ends."""
        home = self.home(name)
        if (home / "end").exists():
            raw = (home / "end").read_bytes()
            if b'"exit_code"' in raw:
                self.tell(msgspec.json.decode(raw, type=contract.PodEnded))
            else:
                self.tell(msgspec.json.decode(raw, type=contract.PodGone))
        elif (home / "pid").exists() and (home / "pid").read_text() == VOID:
            self.end(contract.PodGone(name, self.now(), "NotLaunched"))  # a service died in `void`
        elif name not in self.watched:
            pod = msgspec.json.decode((home / "pod").read_bytes(), type=contract.Pod)
            self.watched[name] = pod, asyncio.create_task(self.wait(pod, home))

    async def wait(self, pod: contract.Pod, home: Path) -> None:
        pid = await self.pid(home)
        started_ms = round((home / "pid").stat().st_mtime * 1000)
        self.tell(contract.PodStarted(pod.name, started_ms))
        due_ms = started_ms + (pod.timeout_ms or 1 << 60)
        looks = misses = 0
        while not (home / "exit").exists():
            await asyncio.sleep(POLL_S)
            if self.now() > due_ms:
                due_ms = 1 << 60
                await self.kill(pod, "Timeout", TIMEOUT_GRACE_MS)
            looks += 1
            if looks % round(LOOK_S / POLL_S) == 0:
                alive = f"kill -s 0 -- -{pid} || [ -e {shlex.quote(str(home / 'exit'))} ]"
                misses = misses + 1 if await self.on(pod.node, alive) == 1 else 0  # ssh itself fails with 255
            if misses == 2:
                self.end(contract.PodGone(pod.name, self.now(), "RunnerLost", started=True))
                return
        self.end(self.ended(pod, home, int((home / "exit").read_text())))

    def ended(self, pod: contract.Pod, home: Path, code: int) -> contract.PodEnded:
        at_ms = round((home / "exit").stat().st_mtime * 1000)
        inputs = {self.data(uri, pod.node) for given in pod.inputs for uri in given.uris}
        moved = sum(self.unread.pop(path, 0) for path in inputs)
        size = sum(path.stat().st_size for path in inputs if path.exists())
        usage = contract.Usage(bytes_local=size - moved, bytes_moved=moved)
        ran_ms = at_ms - round((home / "pid").stat().st_mtime * 1000)  # both by the clock of the file server
        if code:
            reason = (home / "reason").read_text() if (home / "reason").exists() else ""
            return contract.PodEnded(pod.name, at_ms, code, reason, usage=usage, ran_ms=ran_ms)
        files = [(output, home / "work" / output.path) for output in pod.outputs]
        missing = [output.name for output, path in files if not (path.is_file() or output.optional)]
        if missing:
            why = f"not written as a file: {', '.join(missing)}"
            return contract.PodEnded(pod.name, at_ms, code, "OutputMissing", why, usage=usage, ran_ms=ran_ms)
        published = []
        for output, path in files:
            if path.is_file():
                self.data(output.uri, pod.node).unlink(missing_ok=True)
                os.link(path, self.data(output.uri, pod.node))
                value = path.read_text().strip() if output.value else None
                size = path.stat().st_size
                published.append(contract.Published(output.name, output.uri, size, value))
        return contract.PodEnded(pod.name, at_ms, code, outputs=tuple(published), usage=usage, ran_ms=ran_ms)

    def script(self, pod: contract.Pod, home: Path) -> str:
        inputs = {}
        for number, given in enumerate(pod.inputs):
            paths = [str(self.data(uri, pod.node)) for uri in given.uris]
            inputs[given.name] = str(home / f"manifest-{number}") if given.manifest else paths[0]
            if given.manifest:
                write(Path(inputs[given.name]), "".join(f"{path}\n" for path in paths).encode())
        for output in pod.outputs:
            (home / "work" / output.path).parent.mkdir(parents=True, exist_ok=True)
        places = Paths(str(home), str(home / "work"), inputs, os.environ.get("PATH", os.defpath))
        env, argv = environment(pod, places)
        command = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in env.items()), *argv])
        return SCRIPT.format(work=shlex.quote(str(home / "work")), command=command)

    def void(self, end: contract.PodGone | contract.PodEnded) -> bool:
        """End a pod before it starts, for good; False if it has started, or ended."""
        home = self.home(end.name)
        home.mkdir(parents=True, exist_ok=True)
        write(home / "void", VOID.encode())
        try:
            os.link(home / "void", home / "pid")
        except FileExistsError:
            return False
        self.end(end)
        return True

    def end(self, end: contract.PodGone | contract.PodEnded) -> None:
        write(self.home(end.name) / "end", msgspec.json.encode(end))
        self.watched.pop(end.name, None)
        self.tell(end)

    async def pid(self, home: Path) -> str:
        while not (home / "pid").exists() or not (home / "pid").read_text().endswith("\n"):
            await asyncio.sleep(POLL_S)
        return (home / "pid").read_text().strip()

    async def on(self, node: str, script: str) -> int:
        command = [word.format(host=node) for word in self.command]
        nowhere = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *command, script, stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        return await process.wait()

    async def logs(
        self, name: str, stream: str, offset: int, limit: int, node: str = ""
    ) -> tuple[bytes, bool]:
        path = self.home(name) / stream
        size = path.stat().st_size if path.exists() else 0
        if offset >= size:
            return b"", name in self.watched
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit), name in self.watched or offset + limit < size

    async def forget(self, names: Sequence[str]) -> None:
        for name in names:
            await asyncio.to_thread(shutil.rmtree, self.home(name) / "work", ignore_errors=True)

    # ---- datasets ----

    async def transfer(self, orders: Sequence[contract.Transfer]) -> None:
        for order in orders:
            task = asyncio.create_task(self.copy(order))
            self.copies.add(task)
            task.add_done_callback(self.copies.discard)

    async def copy(self, order: contract.Transfer) -> None:
        async with self.copying:
            self.tell(await asyncio.to_thread(self.copied, order))

    def copied(self, order: contract.Transfer) -> contract.TransferDone | contract.TransferFailed:
        uri, to, source, now = order.uri, order.dest, order.source, self.now()
        if not order.whole:
            why = "datasets move as a whole here"
            return contract.TransferFailed(uri, to, now, why, source, offset=order.offset, undivided=True)
        if to not in self.nodes or (source is None and not uri.startswith("file:")):
            why = f"there is no host {to!r}, or {uri} is no file: URI"
            return contract.TransferFailed(uri, to, now, why, source, permanent=True)
        there, moved = self.data(uri, to), 0
        try:
            if not there.exists():
                origin = self.data(uri, source) if source else Path(unquote(urlsplit(uri).path))
                part = there.with_name(f".{there.name[:200]}")
                shutil.copyfile(origin, part)
                moved = self.unread[there] = part.replace(there).stat().st_size
            return contract.TransferDone(uri, to, now, moved, source, there.stat().st_size)
        except OSError as error:
            lost, never = source is not None, source is None and isinstance(error, FileNotFoundError)
            return contract.TransferFailed(uri, to, now, str(error), source, lost=lost, permanent=never)

    async def evict(self, uri: str, node: str) -> bool:
        path = self.data(uri, node)
        if any(
            pod.node == node and any(uri in given.uris for given in pod.inputs)
            for pod, _ in self.watched.values()
        ):
            return False
        if path.exists():
            self.tell(contract.ReplicaSeen(uri, node, path.stat().st_size, present=False))
            path.unlink()
        return True

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> contract.Opened | None:
        found = [path for node in (*nodes, *self.nodes) if (path := self.data(uri, node)).exists()]
        return contract.Opened(found[0].stat().st_size, False, chunks(found[0])) if found else None

    # ---- names ----

    def home(self, name: str) -> Path:
        return self.folder / "pods" / name

    def data(self, uri: str, node: str) -> Path:
        return self.folder / "data" / node / quote(uri, safe="")

    def tell(self, event: contract.ClusterEvent | None) -> None:
        self.reports.put_nowait(event)


async def chunks(path: Path) -> AsyncGenerator[bytes, None]:
    with path.open("rb") as file:
        while block := await asyncio.to_thread(file.read, 1 << 20):
            yield block


def write(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}")
    part.write_bytes(data)
    part.replace(path)
