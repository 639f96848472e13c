"""A workflow document taken apart again: every edge between tasks and every file, by rules written out here once more.

It reads JSON and knows nothing of flowsched's own graph, so that the one can be held to the other.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A file by what can be said of it: who wrote it (None: nobody), how many bytes, who reads it.
File = tuple[str | None, int, frozenset[str]]


@dataclass
class Expanded:
    """Tasks by the names that the trace gave them."""

    edges: set[tuple[str, str]] = field(default_factory=set)
    files: Counter[File] = field(default_factory=Counter)
    tasks: list[str] = field(default_factory=list)


def parents_of(match: str, shard: int, width: int, items: int) -> range:
    """Which shards of a stage of `items` shards one shard of `width` reads."""
    if match == "index":
        assert width == items
        return range(shard, shard + 1)
    if match == "chunk":
        return range(shard * items // width, (shard + 1) * items // width)
    return range(items)


def expand(document: Mapping[str, Any], outside: Mapping[str, int], folder: str) -> Expanded:
    """Take a synthetic document apart.

    Args:
        document: As submitted.
        outside: Files that nobody writes: path below `folder` -> bytes.
        folder: Their URI.
    """
    items = {
        stage["name"]: [json.loads(item) for item in stage["scatter"]["items"]]
        for stage in document["stages"]
    }
    found = Expanded(tasks=[item["task"] for shards in items.values() for item in shards])
    readers: dict[Any, set[str]] = defaultdict(set)
    for stage in document["stages"]:
        shards = items[stage["name"]]
        for shard, item in enumerate(shards):
            for slot in range(len(stage["outputs"])):
                readers[stage["name"], shard, f"f{slot}"]
            for given in stage.get("inputs", []):
                if "uri" in given:
                    readers[given["uri"].replace("{index}", str(shard))].add(item["task"])
                    continue
                parent, _, output = given["from"].partition(".")
                for other in parents_of(given["match"], shard, len(shards), len(items[parent])):
                    readers[parent, other, output].add(item["task"])
                    found.edges.add((items[parent][other]["task"], item["task"]))
            for parent in stage.get("needs", []):
                found.edges |= {(other["task"], item["task"]) for other in items[parent]}
    for place, who in readers.items():
        if isinstance(place, str):
            found.files[None, outside[place.removeprefix(f"{folder}/")], frozenset(who)] += 1
        else:
            name, shard, output = place
            item = items[name][shard]
            found.files[item["task"], item["write"][int(output[1:])], frozenset(who)] += 1
    return found
