"""The catalogue: datasets (immutable, with a URI and a size) and their replicas on nodes.

It has the replicas that exist, not the wanted ones; `transfers` decides which copies are made. Sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from copy import copy

import numpy as np
from numpy.typing import NDArray

from flowsched.executor.datasets import INTERMEDIATE, uri_of
from flowsched.scheduling.state.cache_space import Caches, NodeCache
from flowsched.statement import Statement

#: With fewer datasets `crowded` is False.
_FEW = 10_000
#: The nodes of a dataset that the catalogue has forgotten. No code changes it.
_NOWHERE: set[int] = set()
#: Missing bytes of some inputs are kept until one of these changes; beyond this many all are dropped (a bound on memory).
_MOST_CACHED = 4096
#: Inputs, how many nodes, and whether copies that have been ordered count as there.
_MissingKey = tuple[tuple[int, ...], int, bool]


class Catalogue:
    """Datasets by id (dense, never reused) and the nodes that hold them.

    A dataset costs about 900 bytes of memory until a `sweep` removes it, and 32 bytes from then on.

    Attributes:
        uris: URI by dataset id; "" where it is not known any more.
        sizes: Bytes by dataset id, 0 where it is not known yet.
        origins: By dataset id, whether it can be fetched from outside (file, http, s3).
        on_nodes: Datasets that some node has, whole or in pieces.
        version: Grows with every change.
        caches: The contents of the caches with a limit; None = no cache has one.
        undivided: Datasets that are found to move as a whole only: folders, and what an origin does not give in parts.
        editions: Dataset -> which version its pieces are of, as the nodes that copy them report, and how often that changed.
        dropped: Grows with every replica that is not there any more.
        resized: Grows with every dataset whose size changes.
        in_place: Datasets that nodes read where they lie: they take no room in a cache.
        newest: URI of an input from outside -> the version of it that was looked at last.
        whole: Inputs of which none is lost, as far as `lost_of` was asked, until a replica is dropped: by id, since hashing
            thousands takes longer than a look.
    """

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.sizes: list[int] = []
        self.origins: list[bool] = []
        self.version = self.dropped = self.resized = 0
        self.caches: Caches | None = None
        self.in_place: set[int] = set()
        self.newest: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._versions: dict[str, list[int]] = {}  #: URI -> the datasets that are versions of it
        self._replicas: list[set[int]] = []
        self._expected: list[set[int]] = []
        self._kept = 0  #: datasets that the last `sweep` left
        self.on_nodes: set[int] = set()
        self.undivided: set[int] = set()
        self.editions: dict[int, tuple[str, int]] = {}
        self._landed: dict[int, dict[int, int]] = {}  #: dataset -> node -> its pieces there, as bits
        self.whole: dict[int, tuple[int, ...]] = {}
        self._arrays: dict[int, NDArray[np.int64]] = {}
        self._missing: dict[_MissingKey, NDArray[np.int64]] = {}
        self._missing_of: dict[int, set[_MissingKey]] = {}  #: dataset -> the keys of `_missing` that name it

    def __len__(self) -> int:
        """How many datasets are known."""
        return len(self.uris)

    def intern(self, uri: str, size_bytes: int = 0, origin: bool = False) -> int:
        """The dataset's id. Idempotent; it notes a new size, and an origin.

        Args:
            uri: Its name.
            size_bytes: Its size; 0 = not known (what was known stays).
            origin: Whether it can be fetched from outside (once true, it stays so).
        """
        dataset = self._ids.get(uri)
        if dataset is None:
            dataset = self._ids[uri] = len(self.uris)
            self.uris.append(uri)
            self.sizes.append(size_bytes)
            if self.caches is not None:
                self.caches.sizes.append(size_bytes)
            self.origins.append(origin)
            self._replicas.append(set())
            self._expected.append(set())
            if (base := uri_of(uri)) != uri:
                self._versions.setdefault(base, []).append(dataset)
            return dataset
        if size_bytes and size_bytes != self.sizes[dataset]:
            if self.caches is not None and dataset not in self.in_place:
                self.caches.resize(dataset, size_bytes)
            self.sizes[dataset] = size_bytes
            self.resized += 1
            self._forget(dataset)
        if origin and not self.origins[dataset]:
            self.origins[dataset] = True
            self._forget(dataset)
        return dataset

    @property
    def crowded(self) -> bool:
        """Whether the catalogue knows so many datasets that a `sweep` is worth its time: twice as many as the last one left."""
        return len(self._ids) >= max(_FEW, 2 * self._kept)

    def sweep(self, needed: Set[int]) -> None:
        """Remove the datasets that are on no node, on their way to none, and not `needed`.

        A result that is stored outside (`flowsched:` with an origin) stays: only its upload has reported the place.
        """
        for uri, dataset in list(self._ids.items()):
            if (
                dataset in needed
                or self._replicas[dataset]
                or self._expected[dataset]
                or dataset in self._landed
            ):
                continue
            if self.origins[dataset] and uri.startswith(INTERMEDIATE):
                continue
            base = uri_of(uri)
            del self._ids[uri]
            if self.newest.get(base) == dataset:
                del self.newest[base]
            if base != uri:
                self._versions[base].remove(dataset)
                if not self._versions[base]:
                    del self._versions[base]
            self._forget(dataset)
            self.uris[dataset], self.sizes[dataset], self.origins[dataset] = "", 0, False
            self._replicas[dataset] = self._expected[dataset] = _NOWHERE
            self.in_place.discard(dataset)
            self.undivided.discard(dataset)
            self.editions.pop(dataset, None)
        self._kept = len(self._ids)
        if self.caches is not None:
            self.caches.keep(set(self._ids.values()))
        self.whole.clear()

    def copy(self, datasets: Collection[int]) -> Catalogue:
        """A copy in which these datasets can be changed while this one stays; all others are shared, and only read."""
        other = copy(self)
        other._arrays, other._missing, other._missing_of, other.whole = {}, {}, {}, {}
        other.caches = None
        for name in ("uris", "sizes", "origins", "_replicas", "_expected", "_landed", "on_nodes"):
            setattr(other, name, copy(getattr(self, name)))
        for dataset in datasets:
            other._replicas[dataset] = set(self._replicas[dataset])
            other._expected[dataset] = set(self._expected[dataset])
            if dataset in self._landed:
                other._landed[dataset] = dict(self._landed[dataset])
        return other

    def find(self, uri: str) -> int | None:
        """The dataset's id, if it is known."""
        dataset = self._ids.get(uri)  # shared with copies, which do not know what came after them
        return dataset if dataset is None or dataset < len(self.uris) else None

    def read_in_place(self, dataset: int) -> None:
        """Nodes read it where it lies. Idempotent; it stays so."""
        if dataset not in self.in_place:
            self.in_place.add(dataset)
            if self.caches is not None:
                self.caches.resize(dataset, 0)

    def versions_of(self, uri: str) -> list[int]:
        """The datasets that are versions of an input from outside, as far as they were ever known."""
        return list(self._versions.get(uri, ()))

    def add_replica(self, dataset: int, node: int, statement: Statement | None = None) -> None:
        """The node holds the dataset now."""
        self.drop_pieces(dataset, node, statement)
        self._change(self._replicas[dataset], dataset, node, True, statement)
        self._change(self._expected[dataset], dataset, node, False, statement)

    def drop_replica(self, dataset: int, node: int, statement: Statement | None = None) -> None:
        """The node does not hold the dataset any more."""
        self._change(self._replicas[dataset], dataset, node, False, statement)

    def expect(self, dataset: int, nodes: int | Sequence[int], statement: Statement | None = None) -> None:
        """A copy to the node(s) is ordered: still missing there, but no other group has to pay for it again."""
        wanted = {nodes} if isinstance(nodes, int) else set(nodes)
        new = wanted - self._replicas[dataset] - self._expected[dataset]
        if new:
            self._expected[dataset] |= new
            self._forget(dataset, *new)
            if statement is not None:
                statement.undo_with(lambda: self._unexpect(dataset, new))

    def _unexpect(self, dataset: int, nodes: set[int]) -> None:
        self._expected[dataset] -= nodes
        self._forget(dataset, *nodes)

    def unexpect(self, dataset: int, node: int, statement: Statement | None = None) -> None:
        """The ordered copy will not arrive (an arrival says so by itself)."""
        self._change(self._expected[dataset], dataset, node, False, statement)

    def landed(self, dataset: int, node: int) -> int:
        """Which pieces of a dataset a node has that does not have all of it, as bits."""
        return self._landed.get(dataset, {}).get(node, 0)

    def land(self, dataset: int, node: int, piece: int, statement: Statement | None = None) -> int:
        """A piece of the dataset is on the node. Returns all it has, as bits."""
        bits = self.landed(dataset, node) | 1 << piece
        self._set_landed(dataset, node, bits, statement)
        return bits

    def drop_pieces(self, dataset: int, node: int, statement: Statement | None = None) -> None:
        """The node has no loose pieces of the dataset (any more)."""
        if self.landed(dataset, node):
            self._set_landed(dataset, node, 0, statement)

    def edition(self, dataset: int) -> str:
        """Which version the pieces of a dataset are of; "" if that is not known."""
        return self.editions.get(dataset, ("", 0))[0]

    def drop_all_pieces(self, dataset: int, statement: Statement | None = None) -> None:
        """The pieces that nodes have are of no use any more."""
        for node in list(self._landed.get(dataset, ())):
            self._set_landed(dataset, node, 0, statement)

    def _set_landed(self, dataset: int, node: int, bits: int, statement: Statement | None) -> None:
        before = self.landed(dataset, node)
        rows = self._landed.setdefault(dataset, {})
        if bits:
            rows[node] = bits
        else:
            rows.pop(node, None)
        if not rows:
            del self._landed[dataset]
        self._note_on_nodes(dataset)
        self.version += 1
        if self.caches is not None:
            self.caches.settle(dataset, node, self._counts(dataset, node))
        if statement is not None:
            statement.undo_with(lambda: self._set_landed(dataset, node, before, None))

    def holders(self, dataset: int, every: int) -> Iterator[tuple[int, int]]:
        """(node, its pieces as bits) of all nodes that have some of the dataset. `every`: the bits of all pieces."""
        for node in sorted(self._replicas[dataset]):
            yield node, every
        yield from sorted(self._landed.get(dataset, {}).items())

    def nodes_of(self, dataset: int) -> frozenset[int]:
        """Nodes that hold the dataset."""
        return frozenset(self._replicas[dataset])

    def is_on(self, dataset: int, node: int) -> bool:
        """Whether a node holds the dataset."""
        return node in self._replicas[dataset]

    def nodes_with_all(self, inputs: Sequence[int]) -> Collection[int]:
        """Nodes that hold all of some datasets, of which there is at least one. Read-only."""
        found = self._replicas[inputs[0]]
        for dataset in inputs:  # mostly few are on any one node: of a thousand inputs, two or three show it
            if not found:
                break
            if self._replicas[dataset] is not found:
                found = found & self._replicas[dataset]
        return found

    def has_replica(self, dataset: int) -> bool:
        """Whether any node holds the dataset."""
        return bool(self._replicas[dataset])

    def expected_on(self, dataset: int) -> frozenset[int]:
        """Nodes to which a copy has been ordered."""
        return frozenset(self._expected[dataset])

    def lost(self, dataset: int) -> bool:
        """Whether no node has it and it cannot be fetched from outside."""
        return not self.origins[dataset] and not self._replicas[dataset]

    def lost_of(self, datasets: tuple[int, ...]) -> list[int]:
        """Which of them are lost. Cheap to ask again for the same as long as no replica is dropped."""
        if self.whole.get(id(datasets)) is datasets:
            return []
        lost = [dataset for dataset in datasets if self.lost(dataset)]
        if not lost:
            if len(self.whole) >= _MOST_CACHED:
                self.whole.clear()
            self.whole[id(datasets)] = datasets
        return lost

    def withdraw(self, dataset: int, statement: Statement) -> None:
        """It cannot be had from outside any more: its origin has another version now."""
        before = self.origins[dataset]
        statement.undo_with(lambda: self._set_origin(dataset, before))
        self._set_origin(dataset, False)
        self._forget(dataset)

    def bring_back(self, dataset: int, statement: Statement) -> None:
        """It can be had from outside from now on, until the statement is rolled back."""
        before = self.origins[dataset]
        statement.undo_with(lambda: self._set_origin(dataset, before))
        self._set_origin(dataset, True)

    def _set_origin(self, dataset: int, there: bool) -> None:
        self.origins[dataset] = there
        self.dropped += not there
        self.whole.clear()  # `lost_of` may have been asked meanwhile

    def weight(self, dataset: int) -> int:
        """Bytes to copy, at least 1: what is not there is missing, however small or unknown its size."""
        return max(self.sizes[dataset], 1)

    def missing_bytes(self, inputs: Sequence[int], nodes: int) -> NDArray[np.int64]:
        """How much of the inputs each node lacks. 0 exactly where nothing is missing (an empty file counts
        as 1 byte).

        Args:
            inputs: Dataset ids; one named twice counts once.
            nodes: N.

        Returns:
            (N,) bytes. Read-only.
        """
        return self._lacking(tuple(inputs), nodes, ordered=False)

    def unordered_bytes(self, inputs: Sequence[int], nodes: int) -> NDArray[np.int64]:
        """(N,) as `missing_bytes`, without what is on its way there already. Read-only."""
        return self._lacking(tuple(inputs), nodes, ordered=True)

    def _lacking(self, inputs: tuple[int, ...], nodes: int, *, ordered: bool) -> NDArray[np.int64]:
        unique = tuple(dict.fromkeys(inputs))
        ordered = ordered and any(self._expected[dataset] for dataset in unique)
        key = (unique, nodes, ordered)
        cached = self._missing.get(key)
        if cached is not None:
            return cached
        missing = np.empty(nodes, dtype=np.int64)
        missing.fill(sum(map(self.weight, unique)))
        for dataset in unique:
            holders = self._nodes(dataset)
            if len(holders):
                missing[holders] -= self.weight(dataset)
            if ordered and self._expected[dataset]:
                missing[np.fromiter(self._expected[dataset], np.int64)] -= self.weight(dataset)
        missing.setflags(write=False)
        if len(self._missing) >= _MOST_CACHED:
            self._missing.clear()
            self._missing_of.clear()
        self._missing[key] = missing
        for dataset in unique:
            self._missing_of.setdefault(dataset, set()).add(key)
        return missing

    def _nodes(self, dataset: int) -> NDArray[np.int64]:
        array = self._arrays.get(dataset)
        if array is None:
            array = self._arrays[dataset] = np.array(sorted(self._replicas[dataset]), dtype=np.int64)
        return array

    def _change(
        self, members: set[int], dataset: int, node: int, present: bool, statement: Statement | None
    ) -> None:
        if (node in members) is present:
            return
        if statement is not None:
            statement.undo_with(lambda: self._change(members, dataset, node, not present, None))
        if present:
            members.add(node)
        else:
            members.discard(node)
            if members is self._replicas[dataset]:
                self.dropped += 1
                self.whole.clear()
        self._note_on_nodes(dataset)
        self._forget(dataset, node)

    def _note_on_nodes(self, dataset: int) -> None:
        there = bool(self._replicas[dataset]) or dataset in self._landed
        (self.on_nodes.add if there else self.on_nodes.discard)(dataset)

    def limit(self, node: int, limit_bytes: int, statement: Statement | None = None) -> None:
        """Set the limit of a node's cache; 0 = none. From the first limit on, `caches` keeps account of the contents."""
        cache = None if self.caches is None else self.caches.of.get(node)
        before = 0 if cache is None else cache.limit
        if before == limit_bytes:
            return
        if self.caches is None:
            datasets = range(len(self.sizes))
            self.caches = Caches([0 if each in self.in_place else self.sizes[each] for each in datasets])
        if cache is None:
            self.caches.of[node] = NodeCache(limit_bytes)
            for dataset in range(len(self.sizes)):
                self.caches.settle(dataset, node, self._counts(dataset, node))
        self.caches.limit(node, limit_bytes)
        if statement is not None:
            statement.undo_with(lambda: self.limit(node, before))

    def _counts(self, dataset: int, node: int) -> bool:
        """Whether a node's cache holds (some of) a dataset, or will: images are elsewhere."""
        somewhere = node in self._replicas[dataset] or node in self._expected[dataset]
        return (somewhere or node in self._landed.get(dataset, ())) and not self.uris[dataset].startswith(
            "image:"
        )

    def _forget(self, dataset: int, *nodes: int) -> None:
        self.version += 1
        if self.caches is not None:
            for node in nodes:
                self.caches.settle(dataset, node, self._counts(dataset, node))
        self._arrays.pop(dataset, None)
        for key in self._missing_of.pop(dataset, ()):
            del self._missing[key]
            for other in key[0]:
                if other != dataset:
                    self._missing_of[other].discard(key)
