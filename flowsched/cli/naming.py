"""Which workflow a user means, on the command line: what the SDK finds, and a word where a name stands for several."""

from __future__ import annotations

from flowsched.cli.printing import output
from flowsched.client import Client, naming


async def find(client: Client, given: str, *, to_change: bool = False, own: bool = False) -> str:
    """The id of the workflow that a user named; see `flowsched.client.naming.find`."""
    found = await naming.find(client.list, given, to_change=to_change, own=own)
    if found.namesakes > 1:
        engine = f", a run of {found.source}" if found.source else ""
        output.hint(f"{given}: {found.id}, the newest of {found.namesakes}{engine}")
    return found.id
