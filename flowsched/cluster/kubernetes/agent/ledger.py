"""The ledger: the volumes of this node's pods, and the agent's work for each, so that a restart repeats nothing.

One small file per pod. A pod's first order is its only one: a pod that learns another pod's uid cannot use it with an order of
its own. While a pod's volumes are there, the datasets that it reads are in use.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.local.runner.records import sync
from flowsched.cluster.local.runner.safe_paths import Opened
from flowsched.cluster.node.strangers import leave_alone
from flowsched.values import replace

INPUTS: Final = "inputs"
WORK: Final = "work"
_KIND: Final = ("volumes", "kubernetes.io~empty-dir")
#: A UUID, or the hash that a static pod has.
_UID: Final = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,126}[0-9A-Za-z])?")


class NoVolume(Exception):
    """There is no such pod on this node, or no such volume of it (any more)."""


class Volumes:
    """The folders of this node's pods.

    Args:
        pods: Where the kubelet keeps them.
    """

    def __init__(self, pods: Path) -> None:
        self.pods = Path(os.path.realpath(pods))

    def open(self, uid: str, volume: str) -> Opened:
        """Open a volume's folder. Blocks.

        Raises:
            NoVolume: It is not there.
            Unsafe: A link lies on the way to it.
        """
        if not is_uid(uid):
            raise NoVolume(f"{uid[:100]!r} is no pod's uid")
        try:
            with Opened(os.open(self.pods, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as top:
                return safe_paths.folder(top, (uid, *_KIND, volume))
        except FileNotFoundError as error:
            raise NoVolume(f"this node has no volume {volume!r} of a pod {uid}") from error

    def path(self, uid: str, volume: str) -> Path:
        """The path of a volume's folder, of a pod whose uid was checked."""
        return self.pods.joinpath(uid, *_KIND, volume)

    def has(self, uid: str) -> bool:
        """Whether the volumes of a pod are still there: then what was linked into them is in use."""
        return is_uid(uid) and self.path(uid, WORK).is_dir()


def is_uid(text: str) -> bool:
    """Whether a text can be a pod's uid, and so the name of its folder."""
    return _UID.fullmatch(text) is not None


# ---- the pages ----


_SUFFIX: Final = ".json"
_TEMPORARY: Final = ".tmp"


class OtherOrder(Exception):
    """The pod has another order, or the order another pod, or it has expired."""


@dataclass(frozen=True, slots=True)
class Page:
    """The record of one pod.

    Args:
        pod: The engine's name of it.
        digest: Of its order.
        at_ms: When it was last written.
        uris: The datasets that it reads; forgotten once its volumes are gone.
        charged: (found here, brought here) bytes of its inputs, once they have been laid out.
        moving: Its outputs as they were found, from before the first is moved.
        outcome: The agent's answer about its outputs.
    """

    pod: str
    digest: str
    at_ms: int
    uris: tuple[str, ...] = ()
    charged: tuple[int, int] | None = None
    moving: tuple[dict[str, Any], ...] | None = None
    outcome: dict[str, Any] | None = None


class Ledger:
    """The pages of all pods that this node had lately. For the event loop's thread, but for what says that it blocks.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pages: dict[str, Page] = {}
        self._by_pod: dict[str, str] = {}
        self._users: dict[str, set[str]] = {}

    def open(self) -> None:
        """Read what is there; a page that cannot be read is forgotten. Blocks."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            uid = path.name.removesuffix(_SUFFIX).removesuffix(_TEMPORARY).removeprefix(".")
            if not (is_uid(uid) and path.is_file() and path.suffix in (_SUFFIX, _TEMPORARY)):
                leave_alone(path)
                continue
            page = None if path.name.endswith(_TEMPORARY) else _read(path)
            if page is None:
                path.unlink()
            else:
                self._keep(uid, page)

    def page(self, uid: str) -> Page | None:
        """The page of a pod."""
        return self._pages.get(uid)

    def pods(self) -> list[tuple[str, str]]:
        """(uid, the engine's name) of every pod that has a page."""
        return [(uid, page.pod) for uid, page in self._pages.items()]

    def users(self, uri: str) -> frozenset[str]:
        """The pods that have read a dataset, as far as their volumes were there when it was last looked."""
        return frozenset(self._users.get(uri, ()))

    def begin(self, uid: str, page: Page) -> Page:
        """The page of a pod; a new one if it has none. The pod's inputs are in use from now on.

        Raises:
            OtherOrder: It has one of another order, or the order belongs to another pod.
        """
        known = self._pages.get(uid)
        if known is not None and known.digest != page.digest:
            raise OtherOrder(f"the pod {uid} has another order")
        if self._by_pod.get(page.pod, uid) != uid:
            raise OtherOrder(f"the order of {page.pod} belongs to another pod")
        return self._keep(uid, replace(known, uris=page.uris) if known else page)

    def change(self, uid: str, **changes: Any) -> Page:
        """Change a pod's page, in memory."""
        return self._keep(uid, replace(self._pages[uid], **changes))

    def store(self, uid: str, page: Page) -> None:
        """Write a pod's page, so that it is there wholly or not at all, also after the power fails. Blocks."""
        path, temporary = self._folder / (uid + _SUFFIX), self._folder / f".{uid}{_TEMPORARY}"
        with open(temporary, "w") as file:
            json.dump(asdict(page), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync(str(self._folder))

    def release(self, uid: str) -> None:
        """A pod's inputs are not in use (any more): its volumes are gone, or it did not get them."""
        page = self._pages[uid]
        for uri in page.uris:
            self._users[uri].discard(uid)
            if not self._users[uri]:
                del self._users[uri]
        self._pages[uid] = replace(page, uris=())

    def using(self) -> list[str]:
        """The pods with datasets in use."""
        return [uid for uid, page in self._pages.items() if page.uris]

    def written_before(self, at_ms: int) -> list[str]:
        """The pods that use nothing and have a page last written before a moment."""
        return [uid for uid, page in self._pages.items() if page.at_ms < at_ms and not page.uris]

    def forget(self, uids: Iterable[str]) -> None:
        """Forget pods that are gone."""
        for uid in uids:
            page = self._pages.pop(uid)
            if self._by_pod.get(page.pod) == uid:
                del self._by_pod[page.pod]

    def remove(self, uids: Iterable[str]) -> None:
        """Remove the files of pods that are forgotten. Blocks."""
        for uid in uids:
            with suppress(FileNotFoundError):
                (self._folder / (uid + _SUFFIX)).unlink()

    def _keep(self, uid: str, page: Page) -> Page:
        self._pages[uid] = page
        self._by_pod[page.pod] = uid
        for uri in page.uris:
            self._users.setdefault(uri, set()).add(uid)
        return page


def _read(path: Path) -> Page | None:
    try:
        page = Page(**json.loads(path.read_bytes()))
        charged = (int(page.charged[0]), int(page.charged[1])) if page.charged is not None else None
        moving = tuple(page.moving) if page.moving is not None else None
        return replace(page, uris=tuple(page.uris), charged=charged, moving=moving)
    except (OSError, ValueError, TypeError, IndexError):
        return None
