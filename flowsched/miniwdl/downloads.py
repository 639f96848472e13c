"""Inputs of a run that lie elsewhere (http, https, s3): flowsched stages them; miniwdl's own way needs an image with a program.

The download is a task like any other, with the URI as its one input: queued, cached on its node and tried again like other
inputs.
"""

from __future__ import annotations

import logging
import os.path
import re
from collections.abc import Generator
from typing import Any, Final

from WDL.runtime import config
from WDL.runtime.download import aria2c_downloader, awscli_downloader

from flowsched.miniwdl.order import FETCHED
from flowsched.workflow.document.uris import base_name

#: The key of a runtime section that has a file fetched before its command; see `backend`.
RUNTIME_KEY: Final = "flowsched_uri"
#: Characters that a name may not hold: it becomes a file's.
_ODD: Final = re.compile(r"[\x00-\x1f\x7f/]")

_TASK: Final = f"""
task flowsched_download {{
    input {{
        String uri
        env String name
    }}
    command <<<
        mkdir __out && cp {FETCHED} "__out/$name"
    >>>
    output {{
        File file = glob("__out/*")[0]
    }}
    runtime {{
        {RUNTIME_KEY}: uri
        cpu: 1
    }}
}}
"""

Download = Generator[dict[str, Any], dict[str, Any], None]


def http_download(cfg: config.Loader, logger: logging.Logger, uri: str, **recv: Any) -> Download:
    """Fetch a file over http or https."""
    if cfg.get("scheduler", "container_backend") == "flowsched":
        yield from _fetch(uri)
    else:
        yield from aria2c_downloader(cfg, logger, uri, **recv)


def s3_download(cfg: config.Loader, logger: logging.Logger, uri: str, **recv: Any) -> Download:
    """Fetch a file from an object store, with the credentials of the service."""
    if cfg.get("scheduler", "container_backend") == "flowsched":
        yield from _fetch(uri)
    else:
        yield from awscli_downloader(cfg, logger, uri, **recv)


def name_of(uri: str) -> str:
    """The name of the file: the last part of the path."""
    name = _ODD.sub("_", base_name(uri, os.path.lexists))
    return name if name not in ("", ".", "..") and not name.startswith(".") else f"file{name}"


def _fetch(uri: str) -> Download:
    recv = yield {"task_wdl": _TASK, "inputs": {"uri": uri, "name": name_of(uri)}}
    yield recv
