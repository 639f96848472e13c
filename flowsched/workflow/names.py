"""What may be a name, and the environment variable a name becomes."""

from __future__ import annotations

import re
from typing import Final

#: Stages and roles: they become parts of DNS labels and of `stage.output`, hence no dot.
STAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
STAGE_TEXT: Final = "1-63 letters, digits, - or _, the first a letter or digit"
#: Inputs, outputs and queues.
PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
PART_TEXT: Final = "1-63 letters, digits, -, _ or ., the first no - or ."
#: Environment variables, as Kubernetes allows them.
VARIABLE: Final = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]{0,255}")
VARIABLE_TEXT: Final = "1-256 letters, digits, _, - or ., the first no digit"
#: Keys and values of node labels, in selectors and tolerations.
LABEL_KEY: Final = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
LABEL_KEY_TEXT: Final = 'a label key as in Kubernetes ("disktype", "example.org/zone")'
LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
LABEL_VALUE_TEXT: Final = "a label value as in Kubernetes: at most 63 letters, digits, -, _ or ."
#: A shared storage, as a profile's `storages` names it.
STORAGE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
#: Extended resources: always with a domain, so that a misspelt "memroy" is not one.
EXTENDED: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
#: Variables with this prefix are the service's own.
RESERVED_PREFIX: Final = "FLOWSCHED_"

_NOT_IN_A_VARIABLE: Final = re.compile(r"[^A-Z0-9]")


def variable(kind: str, name: str) -> str:
    """The variable that says where a file is: ("INPUT", "ref-dict") gives FLOWSCHED_INPUT_REF_DICT."""
    return f"{RESERVED_PREFIX}{kind}_{_NOT_IN_A_VARIABLE.sub('_', name.upper())}"
