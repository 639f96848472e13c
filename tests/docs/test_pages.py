"""The commands of the pages do what the pages say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from flowsched.cli.app import app
from tests.docs.pages import ROOT, Block, PageFailed, Reader, blocks

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
#: Pages whose commands tests of their own run or look up, and where.
ELSEWHERE = {
    "cromwell.md": "tests/cromwell/test_docs.py",
    "kubernetes.md": "tests/deploy/test_docs.py",
    "tutorials/operator.md": "tests/kubernetes/nodes/test_docs.py",
    "wdl.md": "tests/wdl/test_docs.py",
}


def named(page: Path) -> str:
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


@pytest.mark.slow
def test_the_bioinformatician_s_ten_minutes(tmp_path: Path) -> None:
    """From the demo's variants to samples of their own, as YAML and as WDL."""
    pytest.importorskip("pysam", reason="needs the extra: pip install 'flowsched[genomics]'")
    pytest.importorskip("WDL", reason="miniwdl is not installed: pip install 'flowsched[wdl]'")
    Reader(tmp_path, links=["workflows"]).follow(DOCS / "tutorials" / "bioinformatician.md")


@pytest.mark.slow
def test_the_readme(tmp_path: Path) -> None:
    """A workflow of one's own, a service, Python, curl, TES, a gang that fits the service."""
    pytest.importorskip("pysam", reason="needs the extra: pip install 'flowsched[genomics]'")
    Reader(tmp_path, links=["workflows"]).follow(ROOT / "README.md")


@pytest.mark.parametrize("name", ["tutorials/ml-engineer.md", "reports.md", "sample-sheets.md", "tes.md"])
def test_a_page(name: str, tmp_path: Path) -> None:
    """Pages that need flowsched alone."""
    Reader(tmp_path).follow(DOCS / name)


def test_the_plan_that_is_shown(tmp_path: Path) -> None:
    """Calls, levels and numbers of docs/plans.md."""
    pytest.importorskip("WDL", reason="miniwdl is not installed: pip install 'flowsched[wdl]'")
    Reader(tmp_path, links=["workflows"]).follow(DOCS / "plans.md")


@pytest.mark.slow
def test_pytorch_in_a_gang(tmp_path: Path) -> None:
    """DDP without a launcher, and torchrun in each member."""
    pytest.importorskip("torch", reason="PyTorch is not installed; it is 3 GB, so CI does without")
    Reader(tmp_path).follow(DOCS / "torchrun.md")


def test_a_page_that_lies_is_found(tmp_path: Path) -> None:
    """A command that fails, and an output that does not come."""
    page = tmp_path / "page.md"
    (tmp_path / "a").mkdir()
    page.write_text("```sh\necho one\n```\n\n```text\ntwo\n```\n")
    with pytest.raises(PageFailed, match=r"page\.md:1: no line 'two'"):
        Reader(tmp_path / "a").follow(page)
    (tmp_path / "b").mkdir()
    page.write_text("Text.\n\n```sh\ntrue\n```\n\n```sh\nfalse | cat\n```\n")
    with pytest.raises(PageFailed, match=r"page\.md:7: exit code 1"):
        Reader(tmp_path / "b").follow(page)


def shell_blocks() -> Iterator[tuple[Path, Block]]:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "sh":
                yield page, block


FOLLOWED = (
    "README.md", "tutorials/bioinformatician.md", "tutorials/ml-engineer.md", "owner.md", "reports.md", "sample-sheets.md",
    "tes.md", "plans.md", "torchrun.md",
)  # fmt: skip


def test_every_command_is_run_or_says_why_not() -> None:
    """By the tests above, by a test of the page's own, or a comment says why it cannot be."""
    silent = [
        f"{named(page)}:{block.line}"
        for page, block in shell_blocks()
        if named(page) not in (*FOLLOWED, *ELSEWHERE) and not block.not_run
    ]
    assert silent == [], "run them in a test of tests/docs, or write `<!-- not run: REASON -->` above"
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", sorted({page for page, _ in shell_blocks()}), ids=named)
def test_commands_and_options_exist(page: Path) -> None:
    """Also in blocks that are not run: a `flowsched` with its options, targets of make, files of the repository."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for block in blocks(page):
        if block.language != "sh":
            continue
        for words in commands(block.text):
            where = f"{named(page)}:{block.line}: {' '.join(words)}"
            if Path(words[0]).name == "flowsched":
                assert wrong_options(words[1:]) == [], where
            elif words[0] == "make":
                assert {word for word in words[1:] if "=" not in word} <= targets, where
            missing = [
                word
                for word in words
                if re.match(r"(deploy|workflows|bench)/[\w./-]+$", word) and not (ROOT / word).exists()
            ]
            assert [word for word in missing if "overlays/mine" not in word] == [], where


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a block, as their words."""
    whole = re.sub(r"\\\n\s*", " ", text)
    whole = re.sub(r"'[^']*'", lambda found: found[0].replace("\n", " "), whole)
    for line in whole.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        words: list[str] = []
        try:
            parts = list(lexer)
        except ValueError:  # a quote that ends on a later line: text for another program
            continue
        for word in [*parts, ";"]:
            if re.fullmatch(r"[|&;<>()]+", word):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"\w+=|(until|while|do|then|if|sudo)$", word):
                words.append(word)


def wrong_options(words: list[str]) -> list[str]:
    """Options that the command does not have, or the command itself where there is none."""
    command: Any = get_command(app)
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    rest = words[: words.index("--")] if "--" in words else list(words)  # behind it: of an engine
    while rest and getattr(command, "commands", None):
        if rest[0].startswith("-") or rest[0] in ("COMMAND",):
            break
        if rest[0] not in command.commands:
            return [rest[0]]
        command = command.commands[rest.pop(0)]
        known |= {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return [option for option in given if option not in known]
