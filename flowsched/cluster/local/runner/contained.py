"""A container task from its order to its report: paths, steps, delivery, leftovers."""

from __future__ import annotations

import os
from socket import socket

from .bounds import Bounds
from .deliver import CODE_BYTES, Delivery, code_in, count, deliver_all, leave, left_at, resolved, store_of
from .engine import ImageStep
from .finishing import Inode
from .image_places import ImagePlaces
from .namespace import Mount, make
from .outputs import Refused
from .patterns import is_pattern
from .places import Places, plan
from .records import Record, is_full
from .room import WAIT_S, Progress, wait_for_folder, with_room
from .safe_paths import Unsafe
from .steps import Ending, Step, run_steps
from .task import LAST_SIGNAL_CODE, OUT_OF_MEMORY, RELEASED, Task, release_grace_s
from .uploads import Uploads


class Contained:
    """One attempt's container.

    Args:
        task: Of the attempt.
        mailbox: See `Uploads`.

    Raises:
        Refused: Something that the task asked for is not there.
        OSError: Its paths cannot be laid out.
    """

    def __init__(self, task: Task, mailbox: socket | None) -> None:
        self.task = task
        self.order: Record = task.order["container"]  # type: ignore[assignment]
        self.uploads = Uploads(mailbox, self.order["upload"])  # type: ignore[arg-type]
        self.report: Record = {"steps": [], "outputs": []}
        self.bounds = Bounds(**task.order["bounds"], own=task.folder)  # type: ignore[arg-type]
        self.left = left_at(self.order, self.bounds)
        self.targets: dict[str, str] = {}  #: see `Delivery`
        self.check()
        self.mounts: list[Mount] = []
        self.places = self.laid_out(f"{os.path.realpath(task.folder)}/container")

    def laid_out(self, room: str) -> Places:
        """Its paths, made: in images, or where steps see this machine with what the task asks for put into it."""
        if self.order.get("layout") is not None:
            os.mkdir(room)
            images = ImagePlaces(room, self.order["layout"], self.bounds)  # type: ignore[arg-type]
            images.check_sources()
            images.make_folders()
            images.fill()
            return images
        places = plan(room, self.task.work, self.order)
        places.bounds = self.bounds
        self.mounts = make(places)
        return places

    def step(self, order: Record, number: int, opened: set[Inode]) -> Step:
        """A step's process: in its image, if images are used."""
        if self.places.same_paths:
            return Step(self.task, order, self.places, self.mounts, opened)
        return ImageStep(self.task, order, self.places, number, opened)  # type: ignore[arg-type]

    def check(self) -> None:
        """Refuse paths that may not be inputs or outputs, before anything is read or made. Raises Refused."""
        for mount in self.entries("mounts"):
            self.bounds.check(str(mount["source"]))
        for entry in self.entries("inputs"):
            if entry["content"] is not None:
                continue
            if entry["uri"] == entry["source"]:
                self.bounds.check(str(entry["source"]), whole=True)
            else:  # staged: it lies in a cache
                self.bounds.granted.append(os.path.realpath(str(entry["source"])))
        for output in self.entries("outputs"):
            if output["local"] is not None:
                local = str(output["local"]).rstrip("/")
                self.targets[local] = resolved(self.bounds.check(local))
        away = [str(output["uri"]) for output in self.entries("outputs") if output["local"] is None]
        buckets = {store_of(uri): uri for uri in reversed(away) if self.order["delivers"]}
        for uri in buckets.values():
            self.uploads.check(uri)

    def entries(self, key: str) -> list[Record]:
        """A part of the order."""
        return self.order[key]  # type: ignore[return-value]

    def run(self, wake: int) -> tuple[int, str, str]:
        """Run it to its end: (exit code, reason, message). Its outputs are in place when this returns."""
        ending = run_steps(self.task, wake, self.step)
        wait_for_folder(self.task)
        if 128 < ending.code <= LAST_SIGNAL_CODE and not ending.reason and not ending.message:
            ending.message = f"killed by signal {ending.code - 128}"
        self.report["returned"] = self.returned(ending)
        self.deliver(ending)
        if ending.reason != "Released":
            leave(self.places, self.left, ending.reason)
        if ending.undead:
            ending.message += f"; these processes do not die: {ending.undead}"
        self.report["steps"] = ending.steps
        return ending.code, ending.reason, ending.message

    def returned(self, ending: Ending) -> int | None:
        """The return code in the file that the task's client judges by; None if there is no such file, or no number in it."""
        path = self.order["return_code"]
        if path is None or not ending.well:
            return None
        try:
            with self.places.opened(self.places.canonical(str(path))) as fd:
                return code_in(os.read(fd, CODE_BYTES + 1))
        except (OSError, Unsafe):
            return None

    def deliver(self, ending: Ending) -> None:
        """Take out the outputs that the task left: of its last attempt what is there, also if it has failed.

        If another attempt follows, only the steps' standard streams: the other outputs would lie beside those of that attempt.
        """
        outputs: list[Record] = self.order["outputs"]  # type: ignore[assignment]
        if not self.order["delivers"]:
            return
        well = ending.well
        is_last = self.order["last"] and not (self.order["fitted"] and ending.reason == OUT_OF_MEMORY)
        if ending.reason == RELEASED or not (well or is_last):
            streams = {
                self.places.canonical(str(s[key]))
                for s in self.steps()
                for key in ("stdout", "stderr")
                if s[key] is not None
            }
            outputs = [
                o
                for o in outputs
                if not is_pattern(str(o["path"])) and self.places.canonical(str(o["path"])) in streams
            ]
        progress = Progress(self.task, lambda: count(self.places, outputs))
        with Delivery(self.places, self.uploads.write, self.targets, progress, whole=well) as delivery:
            wait_s = WAIT_S if well else 0.0
            failed = deliver_all(
                delivery, outputs, lambda what, to, act: with_room(self.task, what, to, act, wait_s)
            )
            self.report["outputs"] = delivery.files
        if failed is None:
            return
        error = failed[1]
        if isinstance(error, Refused):
            self.failed(ending, *error.args)
        elif is_full(error) and release_grace_s(self.task.folder) is not None:
            self.failed(ending, "Released", "")
        else:
            self.failed(ending, "OutputFailed", f"cannot deliver: {error}")

    def failed(self, ending: Ending, reason: str, message: str) -> None:
        """Outputs that cannot be delivered are a failure. Of a task that has failed by itself they are a warning
        beside its reason.
        """
        if ending.well:
            ending.reason, ending.message = reason, message
        elif message:
            ending.message = "; ".join(
                filter(None, (ending.message, f"not all outputs came back: {message}"))
            )

    def steps(self) -> list[Record]:
        """As they were ordered."""
        return self.order["steps"]  # type: ignore[return-value]
