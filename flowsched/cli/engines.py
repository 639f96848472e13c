"""`flowsched run` of a workflow in another engine's language: the engine runs as the head of the run (`workflow.formats.heads`)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flowsched import engine_programs, tokens
from flowsched.cli.context import echo
from flowsched.client import Client, Run
from flowsched.cluster.local.orders import set_secret
from flowsched.errors import InvalidRequest
from flowsched.workflow.formats.heads import TOKEN_SECRET, Engine, run_name


class EngineWorkflow(NamedTuple):
    """A workflow, the engine that runs it, and how the engine is admitted to the service."""

    engine: Engine
    program: str
    path: str
    arguments: Sequence[str]
    root: Path | None  #: of the service in this process
    token: str | None  #: as the user gave it, or that of the service in this process
    raw: bytes = b""  #: there is no document before the run has an id

    async def submit(self, client: Client, key: str | None = None, resume: str | None = None) -> Run:
        """Start the head. The run's id is that of all its tasks.

        Raises:
            InvalidRequest: The service is not on this machine, or another account's.
        """
        root, token = self.root or tokens.root_of(client.url), self.token or tokens.found(client.url)
        if root is None:
            raise InvalidRequest(
                f"{self.engine.program} runs beside its service, on the files of that machine, and {client.url} is no service of "
                "yours on this machine. Leave out --server and FLOWSCHED_SERVER to run here, or use the service's WES: "
                f"{client.url}/ga4gh/wes/v1 (docs/engines.md)"
            )
        if token:
            set_secret(root, TOKEN_SECRET, token.encode())
        name = run_name(self.path)
        ident = f"{name}-{secrets.token_hex(4)}"
        document = engine_programs.document(
            self.engine, self.program, self.path, os.getcwd(), self.arguments,
            url=client.url, ident=ident, name=name, token=bool(token),
            again=self.root is None,  # else the user runs it again in its folder, which the old one would hold
        )  # fmt: skip
        accepted = await client.submit(document)
        return Run(ident, accepted.created, client, accepted.notes)


def engine_workflow(
    path: str,
    language: str,
    program: str | None,
    arguments: Sequence[str],
    root: Path | None,
    token: str | None,
) -> EngineWorkflow:
    """Find the engine of a workflow, and say its version.

    Raises:
        InvalidRequest: No engine for the language is installed.
        OSError: There is no such file.
    """
    with open(path, "rb"):
        pass
    engine, found = engine_programs.find(language, program)
    version = engine_programs.version(engine, found)
    echo(f"{engine.program}{f' {version}' if version else ''} runs {path} ({found})")
    return EngineWorkflow(engine, found, os.path.abspath(path), arguments, root, token)
