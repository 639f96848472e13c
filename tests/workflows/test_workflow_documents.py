"""The documents in `workflows/` say what is there."""

import json
from pathlib import Path

import pytest
from document_runner import WORKFLOWS, expand, variable

DOCUMENTS = sorted(path.name for path in WORKFLOWS.glob("*.json"))


def test_the_promised_workflows_are_here() -> None:
    """One document for each kind of work."""
    assert DOCUMENTS == [
        "fan-out.json",
        "hello-image.json",
        "mpi-allreduce.json",
        "parameter-server.json",
        "spark-like.json",
        "variant-calling.json",
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_input_exists_with_the_size_that_is_declared(name: str) -> None:
    """A file of this folder, or an output of an earlier stage."""
    known: set[str] = set()
    for stage in json.loads((WORKFLOWS / name).read_text())["stages"]:
        for given in stage.get("inputs", ()):
            if "from" in given:
                assert given["from"] in known
                continue
            path = WORKFLOWS / given["uri"]
            assert path.is_file()
            assert given.get("size", path.stat().st_size) == path.stat().st_size
        known |= {f"{stage['name']}.{output['name']}" for output in stage.get("outputs", ())}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_two_names_of_a_stage_fold_into_one_variable(name: str) -> None:
    """Which the service would refuse."""
    for stage in json.loads((WORKFLOWS / name).read_text())["stages"]:
        for kind in ("inputs", "outputs"):
            variables = [variable(kind, part["name"]) for part in stage.get(kind, ())]
            assert len(set(variables)) == len(variables)


def test_data_is_small_and_carries_its_licence() -> None:
    """Each data set has a folder with a LICENSE; all together they stay below 200 kB."""
    folders = [path for path in (WORKFLOWS / "data").iterdir() if path.is_dir()]
    assert sorted(path.name for path in folders) == ["digits", "ex1"]
    assert all((path / "LICENSE").is_file() for path in folders)
    assert sum(path.stat().st_size for path in Path(WORKFLOWS, "data").rglob("*")) < 200_000


@pytest.mark.parametrize(
    ("argument", "expanded"),
    [
        ("$(NAME)", "value"),
        ("a $(NAME) b $(NAME)", "a value b value"),
        ("$$(NAME)", "$(NAME)"),
        ("$(OTHER)", "$(OTHER)"),
        ("$((NAME * NAME))", "$((NAME * NAME))"),
    ],
)
def test_arguments_are_expanded_as_kubernetes_does(argument: str, expanded: str) -> None:
    """The runner of these tests keeps the contract, and a shell's arithmetic is left alone."""
    assert expand(argument, {"NAME": "value"}) == expanded
