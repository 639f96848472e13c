"""Names of datasets. A dataset from outside is its URI *and* the version that was seen there; an output of a task is one URI.

    /data/a.vcf#version=5f0c…        a file of this machine as it was when a run looked at it
    s3://lab/a.vcf#version=of-w1…    its store names no version: this copy is for one run only
    flowsched:w1…/call/0/0/vcf       an output; its name has the attempt that wrote it

The name identifies the source of a copy. A copy of another version has another name, so no task takes it for the input.
Where each part of flowsched learns a version: docs/locality.md, "Versions of inputs".
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

#: Names of outputs of tasks begin so: copies of them are on nodes alone, until an upload reports another place.
INTERMEDIATE: Final = "flowsched:"
_MARK: Final = "#version="
_OF_RUN: Final = "of-"
_NAME: Final = re.compile(rf"(.*){_MARK}([0-9a-f]{{32}}|{_OF_RUN}[0-9A-Za-z-]+)", re.DOTALL)


class Dataset(NamedTuple):
    """The parts of a dataset's name. `version`: a digest of the source's name for it, `of-RUN`, or "" where there is none."""

    uri: str
    version: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the source names its versions, so that a copy can be compared with it."""
        return bool(self.version) and not self.version.startswith(_OF_RUN)


def parse(name: str) -> Dataset:
    """The URI and the version of a dataset."""
    found = _NAME.fullmatch(name) if _MARK in name else None
    return Dataset(name) if found is None else Dataset(found[1], found[2])


def uri_of(name: str) -> str:
    """The URI alone, for people and for the place that it is fetched from."""
    return parse(name).uri


def digest_of(version: str) -> str:
    """A version as names have it."""
    return hashlib.sha256(version.encode(errors="surrogatepass")).hexdigest()[:32]


def versioned(uri: str, version: str) -> str:
    """The name of a dataset from outside, by its source's name for the version."""
    return f"{uri}{_MARK}{digest_of(version)}"


def of_run(uri: str, run: str) -> str:
    """The name of a dataset whose source names no version: another run makes a copy of its own."""
    return f"{uri}{_MARK}{_OF_RUN}{run}"
