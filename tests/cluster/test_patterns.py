"""Wildcards of outputs, which clients send: what fits them, and that no pattern makes the runner search for ever."""

from __future__ import annotations

import pytest

from flowsched.cluster.local.runner.patterns import fits, is_pattern


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("*.bam", ["a.bam", ".bam"], ["a.bai", "x/a.bam", "a.bam "]),
        ("a?c", ["abc", "a.c"], ["ac", "a/c", "abbc"]),
        ("[a-c]x[!0-9]", ["axy", "cx-"], ["dxy", "ax1", "ax/"]),
        ("[z-a]", [], ["z", "a", "[z-a]"]),
        ("**/x.txt", ["x.txt", "a/x.txt", "a/b/x.txt"], ["ax.txt", "a/x.txt/b"]),
        ("a**b", ["ab", "axb", "a/x/b"], ["a/x", "xb"]),
        ("**", ["", "a", "a/b"], []),
        ("{bam,bai}.*", ["bam.1", "bai.gz"], ["cram.1"]),
        ("[", ["["], ["x"]),
    ],
)
def test_what_fits_a_pattern(pattern: str, fitting: list[str], others: list[str]) -> None:
    """As in a shell, with `**` across folders."""
    assert [name for name in fitting + others if fits(name, pattern)] == fitting


@pytest.mark.parametrize("wild", ["*", "**", "**/", "?*"])
def test_a_pattern_of_many_wildcards_is_answered(wild: str) -> None:
    """A match that goes back and tries again would need more steps than there are atoms; it held a core past the timeout."""
    assert not fits("a/" * 100 + "c", f"{wild}a" * 40 + "b")


def test_commas_without_a_closing_brace_are_answered() -> None:
    """What is asked of each path of a document takes one pass over it."""
    assert not is_pattern("{" + "," * 200_000)
