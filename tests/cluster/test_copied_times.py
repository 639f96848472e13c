"""Times of files in a node's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowsched.cluster.local.runner.trees import file_version
from flowsched.cluster.node.cache import Cache, Entry
from flowsched.executor.datasets import versioned

_LONG_AGO = 1_000_000_000


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_copy_has_the_time_of_its_source(tmp_path: Path, is_changed: bool) -> None:
    """Else an index that stays beside the source would be older than its data. A source that changed meanwhile says nothing."""
    source, cache = tmp_path / "hg38.fa", Cache(tmp_path / "cache")
    cache.scan()
    source.write_text("ACGT")
    os.utime(source, (_LONG_AGO, _LONG_AGO))
    entry = Entry(versioned(str(source), file_version(source.stat())), 4, "hg38.fa")
    made = cache.temporary()
    (made / "hg38.fa").write_text("ACGT")
    if is_changed:
        source.write_text("TTTTT")
        os.utime(source, (_LONG_AGO, _LONG_AGO))
    cache.publish(made, entry)
    assert (cache.payload(entry).stat().st_mtime == _LONG_AGO) is not is_changed
