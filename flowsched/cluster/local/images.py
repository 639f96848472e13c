"""The images of a local cluster: found or pulled once, before the tasks that name them are started, and told as datasets are."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Pool
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from flowsched.background import BackgroundTasks
from flowsched.cluster.local.containers import Engine, Image, devices, find_engine, layout_of, mounts_of
from flowsched.cluster.local.runner.engine import remove
from flowsched.cluster.node.container_paths import Refusal
from flowsched.cluster.node.image_pulls import is_hopeless
from flowsched.executor.protocol import Pod
from flowsched.log_lines import get_logger

log = get_logger(__name__)

Policy = Literal["use", "ignore"]

#: Why a pod is held, or refused; as a kubelet says it.
PULLING: Final = "ImagePulling"
PULL_FAILED: Final = "ErrImagePull"
REFUSED: Final = "ImageRefused"
#: An image that was found is looked for again after this: people remove images.
_FRESH_S: Final = 60.0
#: Between two attempts to pull: at first, and at most.
_PAUSES_S: Final = (2.0, 60.0)
#: How often a pull tells how far it is.
_REPORT_S: Final = 5.0
#: How long containers that have ended stay: they are removed together.
_SWEEP_S: Final = 5.0
#: At the end of a service so many times, with a pause between, while a runner has not said yet what it still starts.
_LAST_SWEEPS: Final = 10
_LAST_SWEEP_S: Final = 0.3
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f]")


class ContainerSettings(msgspec.Struct, frozen=True):
    """How tasks that name an image run on this machine.

    Args:
        engine: One of `containers.CHOICES`.
        images: `use` them; or `ignore` them: tasks run with the programs of this machine.
        network: See `containers.Engine`.
        pull_s: An image that cannot be pulled for a reason that may pass is given up after this.
    """

    engine: str = "auto"
    images: Policy = "use"
    network: str = "host"
    pull_s: float = 900.0


#: Called with the reason and message of a pod that is held; "" and "" when it no longer is.
ReportWait = Callable[[str, str], None]


class Images:
    """The images of one cluster.

    Args:
        settings: The user's choices.
        root: Of the cluster.
        pool: For calls of the engine.
        report_image: Called with the name and size of each image that is here now.
        is_over: Whether an attempt of a name has ended, None where that is not known yet; called in threads.
    """

    def __init__(
        self,
        settings: ContainerSettings,
        root: Path,
        pool: Pool,
        report_image: Callable[[str, int], None],
        is_over: Callable[[str], bool | None],
    ) -> None:
        self._is_over = is_over
        self._settings = settings
        self._root = root
        self._pool = pool
        self._report_image = report_image
        self._engine: Engine | None = None
        self._tried: asyncio.Task[None] | None = None
        self._reasons: list[str] = []
        self._here: dict[str, tuple[Image, float]] = {}
        self._pulls: dict[str, asyncio.Task[str]] = {}  #: of images that are looked for or pulled
        self._listeners: dict[str, set[ReportWait]] = {}
        self._last_reports: dict[str, tuple[str, str]] = {}  #: of each pull

        self._gpus = False
        self._background = BackgroundTasks("containers that have ended")
        self._sweeping: asyncio.Task[None] | None = None
        #: Whether attempts have ended since the last sweep began, or it found some of which that was not known.
        self._left = False
        self._was_used = self._used.exists()  #: by services before this one
        self._ignored: set[str] = set()
        self._refused: dict[str, Refusal] = {}  #: pods without their image, until their end is reported

    @property
    def ignored(self) -> bool:
        """Whether tasks run without their images."""
        return self._settings.images == "ignore"

    async def close(self) -> None:
        """Pull no more, and let the engine finish removing what has ended."""
        for task in [*self._pulls.values(), *([self._tried] if self._tried else [])]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._sweeping is not None and not self._sweeping.done():
            self._left = True  # the sweep that this ends may have been at its middle
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for _ in range(_LAST_SWEEPS):
            if not self._left:
                break
            await self._sweep_all()
            if self._left:  # a runner of an earlier service is about to say what it still starts
                await asyncio.sleep(_LAST_SWEEP_S)

    # --- before a pod is started -----------------------------------------------------------------------------

    def is_ready(self, pod: Pod) -> bool:
        """Whether a pod can be started at once, as far as images go: `have` has nothing to do."""
        names = images_of(pod)
        if not names or self.ignored or pod.name in self._refused:
            return True
        return self._engine is not None and all(self._fresh(name) is not None for name in names)

    async def have(self, pod: Pod, report: ReportWait) -> None:
        """Wait until the images of a pod are here, or are known never to be: `order` says so then.

        Args:
            pod: It.
            report: Called when the pod waits, with the reason, and when it waits no longer.
        """
        try:
            refusal = await self._find_all(pod, report)
        except Exception as error:  # one task's images must not end the others'
            log.exception("images not asked for", pod=pod.name)
            refusal = Refusal(
                REFUSED, f"the container engine's answer about its images is not understood: {error!r}"
            )
        if refusal is not None:
            self._refused[pod.name] = refusal

    async def _find_all(self, pod: Pod, report: ReportWait) -> Refusal | None:
        """Find or pull the images of a pod; the reason why there is one that cannot be had, or no engine."""
        await self._choose()
        if self._engine is None:
            return Refusal(REFUSED, self._no_engine(pod))
        for name in images_of(pod):
            why = await self._have(name, report)
            if why:
                return Refusal(PULL_FAILED, f"the image {name} cannot be pulled: {why}")
        report("", "")
        return None

    async def digests(self, names: Sequence[str]) -> dict[str, str]:
        """The digests of the images among these that are on this machine now. Nothing is pulled."""
        await self._choose()
        if self._engine is None or self.ignored:
            return {}
        for name in names:
            if self._fresh(name) is None:
                await self._find(name)
        return {name: image.digest for name in names if (image := self._fresh(name)) is not None}

    async def _choose(self) -> None:
        """Choose the engine: once, when the first task needs one. A choice that has failed is made again by the next."""
        if self._tried is None or (
            self._tried.done() and (self._tried.cancelled() or self._tried.exception())
        ):
            self._tried = asyncio.create_task(self._try(), name="container engine")
        await asyncio.shield(self._tried)

    async def _try(self) -> None:
        """Try the engines."""
        loop = asyncio.get_running_loop()
        chosen, network = self._settings.engine, self._settings.network
        self._engine, self._reasons = await loop.run_in_executor(self._pool, find_engine, chosen, network)
        self._gpus = await loop.run_in_executor(self._pool, devices)
        if self._engine is not None:
            log.info("containers", engine=self._engine.kind, version=self._engine.version, network=network)
            known, line = self._known_engines(), f"{self._engine.kind} {self._engine.program}\n"
            if line not in known:
                self._used.write_text(known + line)

    def _no_engine(self, pod: Pod) -> str:
        wanted = " and ".join(repr(name) for name in images_of(pod))
        found = "; ".join(self._reasons) or "--containers none was said"
        return (
            f"no container engine runs the image {wanted}: `flowsched doctor` says what to mend, `--images ignore` of "
            f"`flowsched serve` or `run` takes the programs of this machine. Found: {found}"
        )

    def _fresh(self, name: str) -> Image | None:
        known = self._here.get(name)
        return known[0] if known is not None and time.monotonic() - known[1] < _FRESH_S else None

    async def _have(self, name: str, report: ReportWait) -> str:
        """Find an image or pull it, once for all who wait for it; why it cannot be had, or ""."""
        if self._fresh(name) is not None:
            return ""
        if name not in self._pulls:
            self._pulls[name] = asyncio.create_task(self._pull(name), name=f"image {name}")
            self._pulls[name].add_done_callback(lambda _: self._pull_ended(name))
        listeners = self._listeners.setdefault(name, set())
        listeners.add(report)
        if name in self._last_reports:
            report(*self._last_reports[name])
        try:
            return await asyncio.shield(self._pulls[name])
        finally:
            listeners.discard(report)

    async def _find(self, name: str) -> bool:
        assert self._engine is not None
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(self._pool, self._engine.find_image, name, self._root / "images")
        if image is None:
            self._here.pop(name, None)
            return False
        self._here[name] = (image, time.monotonic())
        self._report_image(name, image.size_bytes)
        return True

    async def _pull(self, name: str) -> str:
        """Find an image, or pull it, again and again while that may help; why it cannot be pulled, or ""."""
        if await self._find(name):
            return ""
        began, pause_s = time.monotonic(), _PAUSES_S[0]
        while True:
            self._report(name, PULLING, f"pulls the image {name}")
            why = await self._pull_once(name)
            if not why and await self._find(name):
                log.info("image pulled", image=name, seconds=round(time.monotonic() - began, 1))
                return ""
            why = why or "the engine pulled it, and does not find it"
            log.warning("image not pulled", image=name, why=why)
            if is_hopeless(why) or time.monotonic() - began + pause_s > self._settings.pull_s:
                return why
            self._report(name, PULL_FAILED, f"the image {name} cannot be pulled yet: {why}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSES_S[1])

    def _pull_ended(self, name: str) -> None:
        self._pulls.pop(name, None)
        self._last_reports.pop(name, None)

    async def _pull_once(self, name: str) -> str:
        """Run the engine's pull to its end; its words if it failed."""
        assert self._engine is not None
        process = await asyncio.create_subprocess_exec(
            *self._engine.pull_command(name, self._root / "images"),
            env=self._engine.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        lines: list[str] = []
        reported_at = time.monotonic()
        try:
            while block := await process.stdout.read(4096):
                lines = [*lines, *_CONTROL.sub("\n", block.decode(errors="replace")).splitlines()]
                lines = [line.strip() for line in lines if line.strip()][-8:]
                if lines and time.monotonic() - reported_at > _REPORT_S:
                    reported_at = time.monotonic()
                    self._report(name, PULLING, f"pulls the image {name}: {lines[-1][:200]}")
            return "" if await process.wait() == 0 else last_words(lines)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _report(self, name: str, reason: str, message: str) -> None:
        self._last_reports[name] = reason, message
        for report in list(self._listeners.get(name, ())):
            report(reason, message)

    # --- orders of runners -----------------------------------------------------------------------------------

    def order(self, pod: Pod, folder: Path, caches: Sequence[Path], staged: dict[str, str]) -> dict[str, Any]:
        """The parts of a pod's order that say how it uses its images; `refused` if it cannot.

        Args:
            pod: `is_ready` says yes to it.
            folder: Of the attempt.
            caches: That its inputs are read from.
            staged: Name of an input of the stage -> its file or folder in a cache.
        """
        names, refused = images_of(pod), self._refused.get(pod.name)
        if refused is not None:
            return {"refused": (refused.reason, refused.message)}
        if not names:
            return {}
        if self.ignored:
            for name in {*names} - self._ignored:
                self._ignored.add(name)
                log.warning("image ignored", image=name, first=f"{pod.workflow}/{pod.stage}")
            return {"images": [(name, "") for name in names]}
        engine = self._engine
        here = {name: self._here[name][0] for name in names if name in self._here}
        if engine is None or len(here) < len(names):
            return {"refused": (REFUSED, self._no_engine(pod))}
        order: dict[str, Any] = {
            "images": [(name, here[name].digest) for name in names],
            "engine": engine.order(self._root, pod, gpus=pod.gpu_ids if self._gpus else None),
            "mounts": mounts_of(folder, caches),
        }
        if pod.container is None:
            return order | {"image": here[names[0]].run}
        steps = [step.image for step in pod.container.steps]
        if None in steps:
            return {
                "refused": (
                    REFUSED,
                    f"step {steps.index(None)} of the task names no image, and another one does",
                )
            }
        layout = layout_of(pod, staged)
        if isinstance(layout, Refusal):
            return {"refused": (layout.reason, layout.message)}
        return order | {
            "image": here[names[0]].run,
            "layout": layout,
            "steps": [here[step].run for step in steps if step],
        }

    # --- what has ended --------------------------------------------------------------------------------------

    def ended(self, name: str) -> None:
        """An attempt is no more: its containers are removed soon, with others' in one call."""
        self._refused.pop(name, None)
        if self._engine is None and not self._was_used:
            return  # no service has run a container for this root; one before this one may have begun the attempt
        self._left = True
        self._sweep_soon()

    async def sweep(self) -> None:
        """Remove the containers of attempts that are no more; also those that a service before this one has left."""
        await self._sweep_all()
        if self._left:
            self._sweep_soon()

    async def _sweep_all(self) -> None:
        self._left = False
        lines = (line.partition(" ") for line in self._known_engines().splitlines())
        engines = [Engine(kind, program) for kind, _, program in lines]
        loop = asyncio.get_running_loop()
        for engine in engines:
            await loop.run_in_executor(self._pool, self._sweep, engine)

    def _sweep(self, engine: Engine) -> None:
        try:
            there = [(name, self._is_over(attempt)) for name, attempt in engine.containers(self._root)]
            left = [name for name, over in there if over]
            self._left |= any(over is None for _, over in there)
            why = remove(engine.kind, engine.program, engine.env, left) if left else ""
        except OSError as error:
            why = str(error)
        if why:
            self._left = True
            log.warning("containers not removed", engine=engine.kind, why=why)

    def _sweep_soon(self) -> None:
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._background.keep(self._sweep_late, "sweep")

    async def _sweep_late(self) -> None:
        while self._left:
            await asyncio.sleep(_SWEEP_S)
            await self._sweep_all()

    @property
    def _used(self) -> Path:
        """The engines that services have used for this root: kind and program, one a line."""
        return self._root / "engines"

    def _known_engines(self) -> str:
        """The file's text; "" where no service has run a container for this root."""
        try:
            return self._used.read_text()
        except FileNotFoundError:
            return ""


def last_words(lines: Sequence[str]) -> str:
    """Why an engine has not pulled an image: the last line that names an error, without what stands before it."""
    last = lines[-1] if lines else "it says nothing"
    line = next((line for line in reversed(lines) if "error" in line.lower()), last)
    return line.rpartition("Error: ")[2][-800:].strip()


def images_of(pod: Pod) -> list[str]:
    """The images that a pod names, each once: of its steps, or its own."""
    named = [step.image for step in pod.container.steps] if pod.container is not None else [pod.image]
    return list(dict.fromkeys(name for name in named if name is not None))
