"""Moments to come, as a user of a terminal writes them: `18:00`, `Friday 18:00`, `2026-12-04 18:00`."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Final

from flowsched.errors import InvalidRequest

_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def moment_of(text: str, now: datetime) -> datetime:
    """The next moment that the text names, in the zone of this machine where the text names none.

    Args:
        text: A time of a day, a weekday (or its first three letters) with or without a time, or a date with or without a time.
        now: The moment, in the zone of this machine.

    Raises:
        InvalidRequest: The text is none of these, or the moment has passed.
    """
    first, _, rest = text.strip().partition(" ")
    weekday = [at for at, day in enumerate(_DAYS) if len(first) >= 3 and day.startswith(first.lower())]
    repeat = timedelta(days=7 if weekday else 1 if first[2:3] == ":" and not rest else 0)
    try:
        if repeat:
            ahead = timedelta(days=(weekday[0] - now.weekday()) % 7 if weekday else 0)
            clock = (rest.strip() or "00:00") if weekday else first
            found = datetime.combine(now.date() + ahead, time.fromisoformat(clock))
        else:
            found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is no moment; write 18:00, Friday 18:00, or 2026-12-04 18:00"
        ) from None
    if found.astimezone() <= now:
        found += repeat
    if found.astimezone() <= now:
        raise InvalidRequest(f"{text!r} has passed; it is {now:%Y-%m-%d %H:%M}")
    return found.astimezone()  # after the sum: the offset is that of the day
