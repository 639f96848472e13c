"""A program in a container: the command line of its engine, and how the engine says that it went.

The runner starts the engine's own command (`podman run`, `docker run`, `apptainer exec`) where it would start the program. With
podman and apptainer everything stays below the runner, so that it is found and killed as any process is; with docker the daemon
holds it, and it is found by its name. The name belongs to one attempt: an engine starts no second container of a name.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Sequence

from . import kin
from .finishing import Inode
from .image_places import ImagePlaces
from .outputs import Refused
from .records import Record
from .safe_paths import Unsafe, open_mounted, write_all
from .steps import Step
from .task import OUT_OF_MEMORY, RELEASED, StartError, Task, amount, release_grace_s

#: The engine's own command has so long to clear up behind a container that has ended.
CLEAR_UP_S = 30.0
#: For an answer of an engine, and for the end of a container that it shall kill.
ANSWER_S = 60.0
#: Codes by which engines say that they have not started the program: they are what a program may end with, too.
ENGINE_CODES = (125, 126, 127)
#: The words of podman's own first process, and of docker's, for a program that it cannot execute.
_INIT = re.compile(r"ERROR \(catatonit:\d+\): failed to exec|\[FATAL tini \(\d+\)\] exec ")
#: The same of apptainer, which ends with 255 then.
_FATAL = re.compile(r'FATAL:\s+"[^"]*": executable file not found in \$PATH')
#: A value that a line of a file carries to each engine. podman 4.6 reads # as a comment, and removes quotes and spaces at the ends.
_ON_A_LINE = re.compile(r"(?:[^\s\0\"'`#\ud800-\udfff](?:[^\r\n\0#\ud800-\udfff]*[^\s\0#\ud800-\udfff])?)?\Z")
#: The longest line that every engine reads.
_LINE_BYTES = 60_000
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: Under such names the engine gets what no line carries: no program reads them, and no document can set them.
_VALUE = "FLOWSCHED_VALUE_"


class Engine:
    """The engine of an order (see `cluster.local.containers`).

    Args:
        order: `kind`: podman, docker or apptainer; `program`: its path; `env`: its environment;
            `options`: of each container; `name`: of the attempt's containers; `bounded`: whether it holds them to their memory.
    """

    def __init__(self, order: Record) -> None:
        self.kind = str(order["kind"])
        self.program = str(order["program"])
        self.env: dict[str, str] = order["env"]  # type: ignore[assignment]
        self.options: list[str] = order["options"]  # type: ignore[assignment]
        self.name = str(order["name"])
        self.bounded = bool(order["bounded"])

    def run(
        self,
        name: str,
        image: str,
        argv: list[str],
        env: dict[str, str],
        mounts: list[tuple[str, str, bool]],
        workdir: str | None,
        note: str,
        *,
        reads: bool,
    ) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment of the engine, which has none of the container's variables in its own process.

        Args:
            name: Of the container.
            image: As the engine knows it; it is not pulled here.
            argv: The command that runs in it.
            env: Its variables beside the image's own.
            mounts: (path of this machine, path of the container, whether it may only be read).
            workdir: None = the image's own.
            note: Where the engine notes the container's number, and beside it that of its first process.
            reads: Whether it gets the standard input.

        Raises:
            StartError: The command is empty, or the engine cannot mount a path.
            Refused: The engine can carry a variable by no way.
        """
        if not argv or not argv[0]:
            raise StartError("", errno.ENOENT, ": the command is empty")
        if self.kind == "apptainer":
            return self._exec(image, argv, env, mounts, workdir)
        command = [self.program, "run", "--name", name, "--pull", "never", "--cidfile", note, *self.options]
        if self.kind == "podman":
            command += ["--pidfile", f"{note}.pid"]
        for source, target, read_only in mounts:
            fields = [
                "type=bind",
                f"source={source}",
                f"target={target}",
                *(["readonly"] if read_only else []),
            ]
            command += ["--mount", ",".join(map(_quoted, fields))]
        lines, renamed = split(env)
        command += ["--env-file", f"/dev/fd/{in_memory(lines)}"]
        if renamed:
            argv = in_shell(env, renamed, argv)
        values = {f"{_VALUE}{number}": value for number, value in enumerate(renamed.values())}
        for variable in values:
            command += ["--env", variable]
        if workdir is not None:
            command += ["--workdir", workdir]
        if reads:
            command.append("--interactive")
        return [*command, "--entrypoint", argv[0], "--", image, *argv[1:]], self.env | values

    def _exec(
        self,
        image: str,
        argv: list[str],
        env: dict[str, str],
        mounts: list[tuple[str, str, bool]],
        workdir: str | None,
    ) -> tuple[list[str], dict[str, str]]:
        """The same of apptainer, which runs the program as a child of its own and keeps nothing."""
        command = [self.program, "exec", *self.options]
        for source, target, read_only in mounts:
            for path in (source, target):
                if ":" in path or "," in path:
                    raise StartError(
                        path, errno.EINVAL, ": apptainer mounts no path with a colon or a comma in it"
                    )
            command += ["--bind", f"{source}:{target}{':ro' if read_only else ''}"]
        if workdir is not None:
            command += ["--pwd", workdir]
        passed = self.env | {f"APPTAINERENV_{key}": value for key, value in env.items()}
        return [*command, image, *argv], passed

    def ended_well(self, name: str) -> bool:
        """Whether a container ran, and ended by itself with exit code 0."""
        if self.kind == "apptainer":
            return True  # its exit code is that of the program, whose parent it is
        form = "{{.State.Status}} {{.State.ExitCode}} {{.State.StartedAt}}"
        state, *_ = ask([self.program, "container", "inspect", "--format", form, name], self.env)
        return state.startswith("exited 0 ") and not state.startswith("exited 0 0001-")

    def state(self, name: str) -> tuple[bool, bool] | None:
        """Of a container that has ended: whether it ever ran, and whether the kernel took a process for its memory.

        None: the engine does not know it.
        """
        if self.kind == "apptainer":
            return None
        form = "{{.State.OOMKilled}} {{.State.StartedAt}}"
        answer, _, failed = ask([self.program, "container", "inspect", "--format", form, name], self.env)
        killed, _, started = answer.strip().partition(" ")
        return None if failed or not started else (not started.startswith("0001-"), killed == "true")


def split(env: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """The lines of a file that carry variables to an engine, and the variables whose values no line carries."""
    renamed = {
        key: value
        for key, value in env.items()
        if not _ON_A_LINE.match(value) or len(key) + len(value.encode()) >= _LINE_BYTES
    }
    return "".join(f"{key}={value}\n" for key, value in env.items() if key not in renamed).encode(), renamed


def in_memory(data: bytes) -> int:
    """A file without a name that holds bytes: its descriptor, which a program that this process becomes inherits."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("flowsched-environment", 0)
    else:
        import tempfile  # takes 10 ms, and Linux needs it not

        fd, path = tempfile.mkstemp()
        os.unlink(path)
        os.set_inheritable(fd, True)
    write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def in_shell(env: dict[str, str], renamed: dict[str, str], argv: list[str]) -> list[str]:
    """The command that gives variables their own names, by the image's shell, and becomes the program.

    Raises:
        Refused: One of all the variables has a name that shells drop.
    """
    lost = next((key for key in env if not _SHELL_NAME.match(key)), None)
    if lost is not None:
        raise Refused(
            "StartFailed",
            f"the variables {next(iter(renamed))} and {lost} cannot be given to one container: the value of the first has a line "
            f"break, a #, or quotes or spaces at an end, and needs a shell, which drops the name {lost}. Rename it, or pass a file",
        )
    script = "".join(
        f'export {key}="${{{_VALUE}{number}}}"; unset {_VALUE}{number}; '
        for number, key in enumerate(renamed)
    )
    return ["/bin/sh", "-c", f'{script}exec "$@"', "sh", *argv]


def _quoted(field: str) -> str:
    """A field of comma-separated values."""
    return '"' + field.replace('"', '""') + '"' if any(sign in field for sign in ',"\n') else field


def ask(command: Sequence[str], env: dict[str, str], timeout_s: float = ANSWER_S) -> tuple[str, str, bool]:
    """Run a command of an engine. Returns its answer, its errors, and whether it failed (then there are errors)."""
    import subprocess  # takes 7 ms, and is needed at odd ends only

    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error), True
    errors, failed = done.stderr.decode(errors="replace").strip(), done.returncode != 0
    return done.stdout.decode(errors="replace"), errors or f"exit code {done.returncode}" * failed, failed


def removal(kind: str, program: str, names: Sequence[str]) -> list[str]:
    """The command that ends and removes containers at once."""
    at_once = ["--time", "0"] if kind == "podman" else []
    return [program, "rm", "--force", "--volumes", *at_once, *names]


def remove(kind: str, program: str, env: dict[str, str], names: Sequence[str]) -> str:
    """End and remove containers; "" if none of them is there any more, or what the engine said. Blocks."""
    if kind == "apptainer":  # it keeps nothing
        return ""
    _, text, failed = ask(removal(kind, program, names), env)
    return "\n".join(line for line in text.splitlines() if failed and "no such container" not in line.lower())


class InImage(Task):
    """A process of an attempt that runs in a container."""

    engine: Engine
    container: str  #: its name
    image: str
    binds: list[tuple[str, str, bool]]
    workdir: str | None
    _ended_at = 0.0
    _stat = ""  #: where the kernel tells what the container uses

    def program(self) -> str:
        """The engine's."""
        return self.engine.program

    def settle(self) -> None:
        """In the child: the engine's command runs outside of the container."""
        os.chdir(self.folder)

    def _oom(self) -> str:
        """The file that podman's monitor leaves where it works when the kernel has killed a process: podman itself misses it."""
        return f"{self.folder}/oom"

    def execute(self, program: str) -> None:
        """In the child: become the engine's command. Raises OSError."""
        if os.path.exists(self._oom()):
            os.unlink(self._oom())  # of an earlier step
        argv, env = self.engine.run(
            self.container,
            self.image,
            self.argv,
            self.env,
            self.binds,
            self.workdir,
            self.note(),
            reads=self.reads(),
        )
        # Rootless podman works in a child that outlives it. Should the runner and the shim be killed, the service finds it by this.
        os.execve(program, argv, env | {"FLOWSCHED_FOLDER": self.folder})

    def reads(self) -> bool:
        """Whether it reads the standard input."""
        return False

    def begun(self) -> Record:
        """The fields of `started` beside its process: how the service ends it, should the runner die."""
        if self.engine.kind == "apptainer":
            return {}
        command = removal(self.engine.kind, self.engine.program, [self.container])
        return {"removal": command, "engine_env": self.engine.env}

    def has_finished(self) -> bool:
        """Whether the container has ended, and its engine has cleared up."""
        if self.reap():
            return True
        if self.status is None:
            return False
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() - self._ended_at > CLEAR_UP_S

    def note(self) -> str:
        """Where the engine notes what the container is known by."""
        return f"{self.folder}/{self.container.rpartition('-')[2]}.cid"

    def resident_bytes(self, limit: int) -> int:
        """The memory of what runs in the container, without its engine; and its CPU time, where Docker's daemon starts it."""
        if self.engine.bounded or self.engine.kind == "docker":
            self._stat = self._stat or memory_stat(self.engine.kind, self.note())
        if self.engine.kind == "docker":
            self.outside_cpu_ms = max(self.outside_cpu_ms, cpu_time_ms(self._stat))
        if self.engine.bounded:
            return anonymous_bytes(self._stat)
        own = _pids_of(os.getpid())
        inner = [pid for pid in kin.descendants() if _pids_of(pid) not in ("", own)]
        return kin.resident_bytes(inner, limit)

    def most_bytes(self, reaped: int) -> int:
        """As measured; the kernel's count has the engine's processes too, and is used only for a program that ended at once."""
        return self.peak_bytes or reaped

    def is_beyond(self, used: int, limit: int) -> bool:
        """Whether the runner has to end it for its memory: not where the kernel does."""
        return not self.engine.bounded and super().is_beyond(used, limit)

    def kill_everything(self) -> list[int]:
        """Kill what is left of it; returns what would not die."""
        if self.pid and (self.status is None or os.WIFSIGNALED(self.status)):
            engine = self.engine
            if why := remove(engine.kind, engine.program, engine.env, [self.container]):
                os.write(2, f"flowsched: {self.container} was not removed: {why}\n".encode())
        return super().kill_everything()

    def judged(self, reason: str, message: str) -> tuple[int, str, str]:
        """(exit code, reason, message) of its end, as the engine knows it."""
        code, reason, message = super().judged(reason, message)
        if not (reason or code) and release_grace_s(self.folder) is not None:
            # An engine that is told to end while it starts a container says 0, too.
            return (0, "", "") if self.engine.ended_well(self.container) else (143, RELEASED, "")
        if reason or not code:
            return code, reason, message
        state = self.engine.state(self.container)
        if (state is not None and state[1]) or os.path.exists(self._oom()):
            limit = self.order["memory_bytes"]
            return (
                137,
                OUT_OF_MEMORY,
                f"the kernel ended a process of it: all of them together may use {amount(int(str(limit)))}",
            )
        last = last_line(f"{self.folder}/stderr")
        if self.engine.kind == "apptainer" and code == 255 and _FATAL.match(last):
            code, started = 127, False
        elif _INIT.match(last):  # podman's says 1 of what it cannot execute
            code, started = 127 if "no such file" in last.lower() else 126, False
        else:
            started = self.engine.kind == "apptainer" or (state is not None and state[0])
        if code in ENGINE_CODES and not started:
            message = f"{self.engine.kind} did not start {self.argv[0]!r} in {self.image}: {last or f'exit code {code}'}"
            return code, "StartFailed", message
        return code, reason, message


def memory_stat(kind: str, note: str) -> str:
    """The file in which the kernel tells what a container's memory is used for; "" as long as it does not run.

    Args:
        kind: Of the engine.
        note: See `Engine.run`.
    """
    try:
        if kind == "podman":
            with open(f"{note}.pid") as file, open(f"/proc/{int(file.read())}/cgroup") as groups:
                return next(filter(os.path.exists, map(_stat_of, groups)), "")
        with open(note) as file:
            number = file.read().strip()
    except (OSError, ValueError):
        return ""
    if not number:  # docker has made the file and not written into it yet
        return ""
    paths = (f"/docker/{number}", f"/system.slice/docker-{number}.scope")
    return next(filter(os.path.exists, (_stat_of(f"::{path}") for path in paths)), "") or next(
        filter(os.path.exists, (_stat_of(f":memory:{path}") for path in paths)), ""
    )


def _stat_of(line: str) -> str:
    """`memory.stat` of a line of /proc/PID/cgroup; "" of hierarchies without memory."""
    _, names, path = line.strip().split(":", 2)
    if names and "memory" not in names.split(","):
        return ""
    return f"/sys/fs/cgroup/{'memory' if names else '.'}{path}/memory.stat"


def anonymous_bytes(path: str) -> int:
    """The memory of a control group's processes that is no file's; 0 if the kernel does not tell it."""
    try:
        with open(path, "rb") as file:
            counts = dict(line.split() for line in file.read().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counts.get(b"anon") or counts.get(b"total_rss") or 0)


def cpu_time_ms(memory_stat: str) -> int:
    """The CPU time that a control group has used; 0 if it is not told.

    Args:
        memory_stat: Its `memory.stat`; CPU time is beside it, or in the hierarchy `cpuacct` of version 1.
    """
    folder, _, _ = memory_stat.rpartition("/")
    try:
        if folder.startswith("/sys/fs/cgroup/memory/"):
            with open(folder.replace("/memory/", "/cpuacct/", 1) + "/cpuacct.usage") as file:
                return int(file.read()) // 1_000_000
        with open(f"{folder}/cpu.stat") as file:
            counts = dict(line.split() for line in file.read().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counts.get("usage_usec") or 0) // 1000


def _pids_of(pid: int) -> str:
    """Which space of process numbers a process has its own in; "" if that is not to be seen."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def last_line(path: str) -> str:
    """The last line of a log that says anything, as an engine prints its error."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    texts = [line for line in lines if line and not line.startswith("See '")]
    return texts[-1].removeprefix("Error: ").removeprefix("docker: ") if texts else ""


class ImageTask(InImage):
    """The process of a task with one command, in the image that its stage names."""

    def __init__(self, folder: str, order: Record, record: Callable[[Record], None]) -> None:
        super().__init__(folder, order, record)
        self.engine = Engine(order["engine"])  # type: ignore[arg-type]
        self.container = self.engine.name
        self.image = str(order["image"])
        self.binds = order["mounts"]  # type: ignore[assignment]
        self.workdir = self.work


class ImageStep(InImage, Step):
    """The process of a step of a container task, in the image that it names."""

    def __init__(
        self, task: Task, step: Record, places: ImagePlaces, number: int, opened: set[Inode]
    ) -> None:
        Step.__init__(self, task, step, places, [], opened)
        self.engine = Engine(task.order["engine"])  # type: ignore[arg-type]
        self.container = f"{self.engine.name}-{number}"
        self.image = str(step["image"])
        self.binds = [*task.order["mounts"], *places.mounts]  # type: ignore[misc]
        self.workdir = None if step["workdir"] is None else self.cwd
        if self.workdir is None:
            self.env.pop("PWD", None)

    def open_streams(self) -> None:
        """See `Step`. An engine takes names: first see that none has become a link, by an earlier step say. Raises Refused."""
        for source, path, _ in self.binds:
            try:
                os.close(open_mounted(source))
            except Unsafe as error:
                message = f"{error} now, and is not mounted at {path}"
                raise Refused("ContainerPathsRefused", message) from None
            except OSError:
                pass  # the engine says what it misses
        super().open_streams()

    def reads(self) -> bool:
        """Whether the step names a file for its standard input."""
        return self.stdin >= 0
