"""A cycle in one file: what it was given, the profile, and what it decided. `replayed` decides again, to the same bytes.

The file is a zip archive: `record.json` (format, version, moment, counts), `profile.json` (as `policy` reads it),
`objects.json` and `arrays/*.npy` (the other arguments of the cycle), `plan.json` (the plan, readable).
"""

from __future__ import annotations

import inspect
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowsched import __version__
from flowsched.errors import FlowschedError, InvalidRequest
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.extension import Offered
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.objects import Reader, Writer, readable
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.policy import document_of, policies_from
from flowsched.workflow.spec import EMPTY

#: Grows when older readers could not understand a file.
FORMAT: Final = 3
#: What this version reads: format 2 names classes by their Python modules.
READABLE: Final = (2, 3)
#: The largest part that is read: 4 GiB. A file from elsewhere must not fill the memory.
_LARGEST: Final = 4 << 30
#: Equal records are equal bytes: zip files tell when they were made.
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Record:
    """One cycle.

    Args:
        inputs: The arguments of `cycle`, by name.
        plan: What it decided, as `plan_bytes` writes it.
        version: Of the flowsched that decided.
    """

    inputs: Mapping[str, Any]
    plan: bytes
    version: str = __version__

    @property
    def profile(self) -> Profile:
        """The policy it decided under."""
        profile: Profile = self.inputs["profile"]
        return profile


def plan_bytes(plan: Plan) -> bytes:
    """A plan as canonical JSON: equal plans are equal bytes."""
    return json.dumps(readable(plan), ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class Draft:
    """A record as plain values and copied arrays: what it was made of may change, and `packed` may run in a thread."""

    about: Mapping[str, Any]
    profile: Mapping[str, Any]
    plan: Plan | bytes
    objects: Mapping[str, Any]
    arrays: Sequence[NDArray[Any]]

    def packed(self) -> bytes:
        """The file; equal records give equal bytes."""
        plan = self.plan if isinstance(self.plan, bytes) else plan_bytes(self.plan)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            _write(archive, "record.json", json.dumps(self.about, indent=2).encode())
            _write(archive, "profile.json", json.dumps(self.profile, indent=2).encode())
            _write(archive, "plan.json", plan)
            _write(archive, "objects.json", json.dumps(self.objects, separators=(",", ":")).encode())
            for at, array in enumerate(self.arrays):
                held = io.BytesIO()
                np.save(held, array, allow_pickle=False)
                _write(archive, f"arrays/{at:05}.npy", held.getvalue())
        return file.getvalue()


def recorded(plan: Plan, /, *arguments: Any, **named: Any) -> Draft:
    """A cycle that has just decided, from its arguments as they were given.

    Raises:
        FlowschedError: Something of it cannot be written.
    """
    bound = inspect.signature(cycle).bind(*arguments, **named)
    bound.apply_defaults()
    try:
        return draft(bound.arguments, plan)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FlowschedError(f"this cycle cannot be recorded: {type(error).__name__}: {error}") from error


def taped(tape: list[Draft | FlowschedError], plan: Plan, arguments: Sequence[Any]) -> None:
    """Put a cycle on a tape, or why it cannot be recorded: deciding goes on all the same."""
    try:
        tape.append(recorded(plan, *arguments))
    except FlowschedError as error:
        tape.append(error)


def draft(inputs: Mapping[str, Any], plan: Plan | bytes, version: str = __version__) -> Draft:
    """The arguments of a cycle, and its plan."""
    writer = Writer()
    profile: Profile = inputs["profile"]
    others = {name: writer.plain(value) for name, value in inputs.items() if name != "profile"}
    about = {
        "format": FORMAT, "version": version, "now": inputs["now"], "nodes": len(inputs["snapshot"]),
        "groups": len(inputs["backlog"]), "profile": profile.name,
    }  # fmt: skip
    return Draft(about, document_of(profile), plan, others, writer.arrays)


def _write(archive: zipfile.ZipFile, name: str, raw: bytes) -> None:
    entry = zipfile.ZipInfo(name, _LONG_AGO)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, raw, compresslevel=1)


def unpacked(
    raw: bytes, plugins: Mapping[str, Offered] | None = None, broken: Mapping[str, str] = EMPTY
) -> Record:
    """Read a file.

    Args:
        raw: The file.
        plugins: What is installed here; the recorded profile may name some.
        broken: What is installed and does not work: why.

    Raises:
        InvalidRequest: It is no snapshot, or one that this version cannot read.
        InvalidDocument: Its profile needs a plugin that is not here.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            about = json.loads(_read(archive, "record.json"))
            if about["format"] not in READABLE:
                raise InvalidRequest(
                    f"the snapshot is of format {about['format']!r:.20}, made by flowsched {about['version']}; "
                    f"this is {__version__}, which reads formats {' and '.join(map(str, READABLE))}"
                )
            names = sorted(name for name in archive.namelist() if name.startswith("arrays/"))
            arrays = [np.load(io.BytesIO(_read(archive, name)), allow_pickle=False) for name in names]
            profile = json.loads(_read(archive, "profile.json"))
            plan = _read(archive, "plan.json")
            reader = Reader(arrays)
            others = json.loads(_read(archive, "objects.json"))
            inputs = {name: reader.value(value) for name, value in others.items()}
        version = str(about["version"])
    except FlowschedError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, LookupError, ValueError, TypeError, AttributeError,
            EOFError, OSError, RuntimeError, ArithmeticError, MemoryError) as error:  # fmt: skip
        raise InvalidRequest(
            f"this is no snapshot that flowsched {__version__} can read: {type(error).__name__}: {error!s:.200}"
        ) from error
    inputs["profile"] = policies_from(profile, plugins or {}, broken).default
    return Record(inputs, plan, version)


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    entry = archive.getinfo(name)
    if entry.file_size > _LARGEST:
        raise InvalidRequest(f"{name} of the snapshot is larger than {_LARGEST:,} bytes")
    if entry.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        raise InvalidRequest(f"{name} of the snapshot is compressed in a way that no snapshot is")
    return archive.read(name)


def replayed(record: Record, profile: Profile | None = None) -> Plan:
    """Decide again; under another profile, if one is given.

    Raises:
        InvalidRequest: The cycle of this version needs something that the file does not hold.
    """
    inputs = {**record.inputs, "profile": profile if profile is not None else record.profile}
    try:
        bound = inspect.signature(cycle).bind(**inputs)
    except TypeError as error:
        raise InvalidRequest(f"the snapshot was made by flowsched {record.version}: {error}") from None
    return cycle(*bound.args, **bound.kwargs)
