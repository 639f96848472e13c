"""Limits of a workflow document. A document beyond one is answered with 413 and the limit's name."""

from __future__ import annotations

from typing import Final, NoReturn

import msgspec

from flowsched.errors import TooLarge


class Limits(msgspec.Struct, frozen=True):
    """The limits of one installation; the defaults are those of the documentation."""

    document_bytes: int = 16 << 20  #: the document as sent, decompressed
    depth: int = 32  #: objects and arrays inside each other
    objects: int = 500_000  #: objects and arrays in all: each costs the parser some 200 ns
    values: int = 3_000_000  #: elements of arrays and members of objects in all
    stages: int = 10_000
    tasks: int = 5_000_000  #: of the whole workflow
    tasks_per_stage: int = 1_000_000  #: shards × members
    gang_members: int = 10_000  #: replicas of all roles together
    roles: int = 100  #: of one gang
    inputs: int = 1_000  #: of one stage
    outputs: int = 1_000  #: of one stage
    files: int = 20_000  #: inputs, and outputs, of one container task: joint genotyping reads some 4,000
    needs: int = 1_000  #: of one stage
    edges: int = 200_000  #: between stages, in all
    items_bytes: int = 16 << 20  #: the texts of one scatter's items together, as UTF-8
    string_bytes: int = 64 << 10  #: any one text, as UTF-8
    content_bytes: int = 1 << 20  #: of one file that stands in the document itself
    arguments: int = 10_000  #: of one command
    environment: int = 1_000  #: variables and secrets of one role
    command_bytes: int = 1 << 20  #: command and environment of one role together: what execve takes
    labels: int = 1_000  #: labels, selectors, tolerations, policies, conditions, extended resources: each
    faults: int = 1_000  #: beyond so many, further faults are only counted


DEFAULT: Final = Limits()

#: A larger gang has no variable that lists its members (TF_CONFIG, FLOWSCHED_HOSTS), only files. Linux takes 128 KiB in one
#: variable, and the longest name and port of a member on Kubernetes have 205 bytes.
MOST_LISTED: Final = 512


def exceeded(name: str, limit: int, what: str, found: int) -> NoReturn:
    """Refuse: name the amount that is too large, its excess, and the limit.

    Raises:
        TooLarge: Always.
    """
    raise TooLarge(f"{what}: {found:,}, the limit {name!r} is {limit:,}")
