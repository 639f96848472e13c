"""Moments to come, as a user of a terminal writes them."""

from __future__ import annotations

from datetime import datetime

import pytest

from flowsched.cli.queues import moment_of
from flowsched.errors import InvalidRequest

WEDNESDAY = datetime(2026, 12, 2, 17, 0).astimezone()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("18:00", "2026-12-02 18:00"),
        ("16:30", "2026-12-03 16:30"),
        ("Friday 18:00", "2026-12-04 18:00"),
        ("fri", "2026-12-04 00:00"),
        ("wednesday 18:00", "2026-12-02 18:00"),
        ("Wed 09:00", "2026-12-09 09:00"),
        ("2026-12-24 18:00", "2026-12-24 18:00"),
        ("2026-12-24", "2026-12-24 00:00"),
    ],
)
def test_a_moment_is_the_next_one_that_the_text_names(text: str, moment: str) -> None:
    """In the zone of this machine."""
    assert f"{moment_of(text, WEDNESDAY):%Y-%m-%d %H:%M}" == moment


def test_a_moment_with_a_zone_keeps_it() -> None:
    """As scripts write it."""
    assert moment_of("2026-12-24T18:00+02:00", WEDNESDAY).timestamp() == 1798128000.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", "'soon' is no moment; write 18:00, Friday 18:00, or 2026-12-04 18:00"),
        ("Friday noon", "is no moment"),
        ("25:00", "is no moment"),
        ("", "is no moment"),
        ("2026-12-01", "'2026-12-01' has passed; it is 2026-12-02 17:00"),
    ],
)
def test_what_names_no_moment_to_come_is_refused(text: str, said: str) -> None:
    """With examples of what can be written."""
    with pytest.raises(InvalidRequest) as refused:
        moment_of(text, WEDNESDAY)
    assert said in str(refused.value)
