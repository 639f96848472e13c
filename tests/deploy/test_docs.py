"""docs/kubernetes.md: what it tells people to type exists."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from flowsched.cli.app import app
from flowsched.cluster.kubernetes.settings import VARIABLES
from tests.deploy.conftest import Cluster
from tests.deploy.rendering import (
    CHART,
    ROOT,
    VOLCANO_CRDS,
    documents,
    rendered_helm,
)

TEXT = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
#: Folders that the guide lets the reader make.
MADE_BY_THE_READER = ("deploy/kustomize/overlays/mine",)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def commands() -> Iterator[list[str]]:
    """Every command of a shell block, as its words; pipes and lines that go on are followed."""
    for block in blocks("sh"):
        whole = re.sub(r"\\\n\s*|\|\n\s*", lambda found: "| " if found[0][0] == "|" else " ", block)
        for line in whole.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in lexer:
                if word in ("|", "&"):
                    yield words
                    words = []
                else:
                    words.append(word)
            if words:
                yield words


def of(program: str) -> list[list[str]]:
    found = [words for words in commands() if words[0] == program]
    assert found, f"no {program} in the guide"
    return found


def test_every_file_that_is_named_is_there() -> None:
    """Whatever is applied, built, installed or submitted."""
    named = [
        word
        for words in commands()
        for word in words
        if re.match(r"(deploy|workflows)/", word) and "=" not in word
    ]
    assert len(named) >= 10
    assert [name for name in named if not (ROOT / name).exists() and name not in MADE_BY_THE_READER] == []


def test_every_link_leads_somewhere() -> None:
    """Relative ones."""
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_every_flowsched_command_exists() -> None:
    """With the options that are given to it."""
    group: Any = get_command(app)
    for _, name, *rest in of("flowsched"):
        options = {option for parameter in group.commands[name].params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options


def test_every_value_that_is_set_exists(helm: str) -> None:
    """The chart's schema refuses any other."""
    pairs = [words[at + 1] for words in of("helm") for at, word in enumerate(words) if word == "--set"]
    ours = dict(pair.split("=", 1) for pair in pairs if not pair.startswith("batchScheduler."))
    assert len(ours) >= 6
    assert rendered_helm(helm, {**ours, "database.existingSecret.name": "x"})
    values = documents((CHART / "values.yaml").read_text(encoding="utf-8"))[0]
    named = re.findall(rf"`((?:{'|'.join(values)})(?:\.[a-zA-Z]+)+)(?:=[^`]*)?`", TEXT)
    assert len(named) >= 5
    for name in named:
        inner = values
        for key in name.split("."):
            assert inner == {} or key in inner, name  # an empty mapping takes any key
            inner = inner.get(key, {})


def test_every_variable_that_is_named_is_read() -> None:
    """Somewhere in the code."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "flowsched").rglob("*.py"))
    named = set(re.findall(r"FLOWSCHED_([A-Z_]+)", TEXT))
    assert len(named) >= 5
    derived = {name.removeprefix("FLOWSCHED_") for name in VARIABLES}
    assert {name for name in named - derived if f'"FLOWSCHED_{name}"' not in code} == set()


@pytest.mark.kubernetes
def test_the_server_takes_every_object_that_is_shown(cluster: Cluster) -> None:
    """The Job and the groups; the template of Spark's has no name yet."""
    assert VOLCANO_CRDS.is_dir()
    shown = [each for block in blocks("yaml") for each in documents(block)]
    kinds = [each["kind"] for each in shown]
    assert kinds == ["Job", "PodGroup", "PodGroup"]
    for each in shown:
        each.setdefault("metadata", {"name": "spark", "namespace": "default"})
        said = cluster.do("create", "--dry-run=server", "--validate=strict", "-f", "-", told=json.dumps(each))
        assert "created (server dry run)" in said


@pytest.mark.kubernetes
def test_secrets_are_made_as_the_guide_says(cluster: Cluster) -> None:
    """From standard input, without a newline at the end."""
    line = next(words for words in of("kubectl") if "flowsched-token" in words and "create" in words)
    said = cluster.do(*line[1:], "--dry-run=server", "-o", "jsonpath={.data.token}", told="abc")
    assert said == "YWJj"
