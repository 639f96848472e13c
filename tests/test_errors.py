"""What errors say of names that are not there."""

from __future__ import annotations

from flowsched.errors import no_such


def test_a_typo_is_told_and_another_number_is_none() -> None:
    """`node-9` is no mistyped `node-2`: all that there are are named."""
    known = ["node-1", "node-2", "rack-1"]
    assert no_such("node", "nod-2", known) == "there is no node 'nod-2'; did you mean 'node-2'?"
    assert no_such("node", "node-9", known) == "there is no node 'node-9'; there are node-1, node-2, rack-1"
