"""The reference page says what the decoder does."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from valid_documents import faults_of

from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.policies import ACTIONS, EVENTS, REFUSED_ACTIONS, REFUSED_EVENTS
from tests.house.reference import with_keys

PAGE = (Path(__file__).parents[2] / "docs" / "workflow-document.md").read_text()
LIMITS = PAGE.partition("\n## Limits\n")[2]


def test_the_example_of_the_page_has_no_fault() -> None:
    """As it is written there."""
    example = re.search(r"```json\n(\{.*?\n\})\n```", PAGE, re.DOTALL)
    assert example is not None
    assert faults_of(json.loads(example[1])) == []


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Limits)])
def test_every_limit_is_documented_with_its_default(name: str) -> None:
    """In its table."""
    row = next(
        line for line in LIMITS.splitlines() if line.startswith("| ") and f"`{name}`" in line.split("|")[1]
    )
    value = getattr(DEFAULT, name)
    said = {16 << 20: "16 MiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB"}.get(value, f"{value:,}")
    assert said in row


def test_the_tables_of_keys_are_current() -> None:
    """As the reader has them."""
    assert with_keys(PAGE) == PAGE, "run: python -m tests.house.reference"
    assert PAGE.count("<!-- keys: ") == PAGE.count("<!-- /keys -->") == 8


def test_every_event_and_action_is_documented() -> None:
    """Ours, Volcano's, and those that are refused."""
    words = [w for table in (EVENTS, ACTIONS, REFUSED_EVENTS, REFUSED_ACTIONS) for w in table]
    spelt = [
        w for w in words if w[0].isupper() or w in {str(v) for v in (*EVENTS.values(), *ACTIONS.values())}
    ]
    assert [word for word in spelt if f"`{word}`" not in PAGE] == []
