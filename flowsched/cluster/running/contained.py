"""A container task from its order to its report: paths, steps, what is delivered, what is left."""

from __future__ import annotations

import os

from .deliver import Delivery, leave
from .namespace import make
from .outputs import Refused
from .places import canonical, is_pattern, plan
from .records import Record
from .steps import Ending, run_steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .task import Task


class Contained:
    """One attempt's container.

    Raises:
        Refused: Something that the task asked for is not there.
        OSError: Its paths cannot be laid out.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.order: Record = task.order["container"]  # type: ignore[assignment]
        self.report: Record = {"steps": [], "outputs": []}
        self.places = plan(f"{os.path.realpath(task.folder)}/container", task.work, self.order)
        self.mounts = make(self.places)

    def run(self, wake: int, begun: Callable[[], None]) -> tuple[int, str, str]:
        """Run it to its end: (exit code, reason, message). Its outputs are in place when this returns."""
        ending = run_steps(self.task, wake, self.places, self.mounts, begun)
        self.deliver(ending)
        if ending.reason != "Released":
            self.leave()
        if ending.code > 128 and not ending.reason and not ending.message:
            ending.message = f"killed by signal {ending.code - 128}"
        if ending.undead:
            ending.message += f"; these processes do not die: {ending.undead}"
        self.report["steps"] = ending.steps
        return ending.code, ending.reason, ending.message

    def deliver(self, ending: Ending) -> None:
        """Take out what the task left; after a failure only what its steps said."""
        outputs: list[Record] = self.order["outputs"]  # type: ignore[assignment]
        if not self.order["delivers"]:
            return
        if not ending.well:
            said = {
                canonical(str(s[key]))
                for s in self.steps()
                for key in ("stdout", "stderr")
                if s[key] is not None
            }
            outputs = [
                o for o in outputs if not is_pattern(str(o["path"])) and canonical(str(o["path"])) in said
            ]
        delivery = Delivery(self.places, self.order["upload"])  # type: ignore[arg-type]
        try:
            for output in outputs:
                delivery.take(output)
        except Refused as refusal:
            self.failed(ending, *refusal.args)
        except OSError as error:
            self.failed(ending, "OutputFailed", f"cannot deliver: {error}")
        self.report["outputs"] = delivery.files

    def failed(self, ending: Ending, reason: str, message: str) -> None:
        """Outputs that cannot be delivered are a failure, unless there is one already."""
        if ending.well:
            ending.reason, ending.message = reason, message

    def leave(self) -> None:
        """Write what shall be there after every end."""
        leave(self.places, self.order)

    def steps(self) -> list[Record]:
        """As they were ordered."""
        return self.order["steps"]  # type: ignore[return-value]
