"""How users of each engine ask for memory and cores. Advice helps only in the words that they write themselves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
#: The one stage of a document that a TES task became.
_OF_TES: Final = "task"
#: The script that each task of Nextflow runs.
_NEXTFLOW: Final = ".command.run"


class Words(NamedTuple):
    """The words of one engine.

    Args:
        memory: How a task asks for so many bytes.
        cores: How it asks for so many cores.
        more_memory: The remedy for a task that had too little memory.
    """

    memory: Callable[[int], str]
    cores: Callable[[float], str]
    more_memory: str


def quantity(number: int) -> str:
    """An amount of memory as documents have it: 1536Mi, 2Gi."""
    return f"{number // _GIB}Gi" if number % _GIB == 0 else f"{-(-number // _MIB)}Mi"


def _wdl(more: str = "") -> Words:
    return Words(
        lambda number: f'`runtime {{ memory: "{-(-number // _MIB)} MiB" }}`',
        lambda cores: f"`runtime {{ cpu: {cores:g} }}`",
        f"ask for more in its `runtime {{ memory: … }}`{more}",
    )


_DOCUMENT: Final = Words(
    quantity,
    lambda cores: f"{cores:g}",
    'ask for more memory, or "retry": {"attempts": 3, "memory_factor": 2} gives each attempt twice as much',
)
_TES: Final = Words(
    lambda number: f"`resources.ram_gb`: {-(-number * 100 // _GIB) / 100:g}",
    lambda cores: f"`resources.cpu_cores`: {max(1, -(-cores // 1)):g}",
    'ask for more in `resources.ram_gb`, or `backend_parameters` {"attempts": "3", "memoryFactor": "2"} give each attempt '
    "twice as much",
)
#: By the source of a call, as its client named itself.
_WORDS: Final[Mapping[str, Words]] = {
    "": _DOCUMENT,
    "cromwell": _wdl(
        ', or `maxRetries` there and `"memory_retry_multiplier": 2.0` in the workflow options give each try twice as much'
    ),
    "miniwdl": _wdl(),
    "snakemake": Words(
        lambda number: f"`resources: mem_mb={-(-number // _MIB)}`",
        lambda cores: f"`threads: {max(1, -(-cores // 1)):g}`",
        "ask for more in its `resources: mem_mb=…`, or `mem_mb=lambda wildcards, attempt: 2000 * attempt` and `--retries 2` "
        "give each try more",
    ),
    "nextflow": Words(
        lambda number: f"`memory '{-(-number // _MIB)} MB'`",
        lambda cores: f"`cpus {max(1, -(-cores // 1)):g}`",
        "ask for more in its `memory`, or `memory { 2.GB * task.attempt }` and `errorStrategy 'retry'` give each try more",
    ),
}


def words_of(engine: str) -> Words:
    """The words of an engine, as `engine_in` names it; of one that is not known, those of TES, which it speaks."""
    return _WORDS.get(engine, _TES)


def engine_in(document: Mapping[str, Any]) -> str:
    """The engine that has sent a document: its name, "tes" for one that did not say, "" for a user.

    Args:
        document: Of a workflow, checked.
    """
    source = (document.get("call") or {}).get("source", "")
    if source not in ("", "tes"):
        return str(source)
    stages = document.get("stages", ())
    steps = stages[0].get("steps") or [] if len(stages) == 1 and stages[0]["name"] == _OF_TES else []
    if any(_NEXTFLOW in argument for step in steps for argument in step["command"]):
        return "nextflow"
    return "tes" if source or steps else ""
