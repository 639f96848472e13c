"""The notebooks of `docs/notebooks`, run as their readers run them. `python -m tests.serving.tutorials` keeps what they show."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient

from tests.serving.processes import Served, served

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
#: What the notebooks tell their readers to start, less its port.
OPTIONS = ("--nodes", "3")


def executed(path: Path, service: Served, folder: Path) -> nbformat.NotebookNode:
    """A notebook after it ran in a folder, against a service; cells that shall fail are marked in it.

    Raises:
        nbclient.exceptions.CellExecutionError: Another cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    settings = {"FLOWSCHED_SERVER": service.url, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    with mock.patch.dict(os.environ, settings):
        client = NotebookClient(
            notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )
        return client.execute()


def main() -> None:
    """Run all of them, and write what they show into them."""
    folder = Path(tempfile.mkdtemp(prefix="flowsched-notebooks-"))
    try:
        with (
            mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(folder / "state")}),
            served(folder / "root", *OPTIONS, token=True) as service,
        ):
            service.ready()
            for path in sorted(FOLDER.glob("*.ipynb")):
                notebook = executed(path, service, folder)
                for cell in notebook.cells:
                    cell.metadata.pop("execution", None)  # when it ran: of no use to a reader
                nbformat.write(notebook, path)
                print(f"{path.name}: {len(notebook.cells)} cells")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
