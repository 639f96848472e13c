"""Quantities: texts of users ("8Gi", "500m", "1h30m") as whole numbers, and back.

Every conversion is integer arithmetic and rounds up, so that a task never gets less than it asked for and no
figure depends on how binary fractions round. Knows nothing of stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from flowsched.errors import InvalidRequest

#: Most bytes any quantity may say: 4 PiB, so that a thousand times as much still fits 64 bits.
LARGEST_BYTES: Final = 1 << 52
LARGEST_MILLICORES: Final = 1_000_000_000  #: a million cores in one pod
LARGEST_GPU_MILLIS: Final = 1_000_000_000
LARGEST_COUNT: Final = 1_000_000_000  #: of an extended resource
LARGEST_DURATION_MS: Final = 10 * 366 * 24 * 3_600_000  #: ten years

#: Suffix -> (numerator, denominator). As in Kubernetes: `K` does not exist, `k` is 1000 and `Ki` 1024.
_SUFFIXES: Final[Mapping[str, tuple[int, int]]] = {
    "n": (1, 10**9),
    "u": (1, 10**6),
    "m": (1, 10**3),
    "": (1, 1),
    "k": (10**3, 1),
    "M": (10**6, 1),
    "G": (10**9, 1),
    "T": (10**12, 1),
    "P": (10**15, 1),
    "E": (10**18, 1),
    "Ki": (1 << 10, 1),
    "Mi": (1 << 20, 1),
    "Gi": (1 << 30, 1),
    "Ti": (1 << 40, 1),
    "Pi": (1 << 50, 1),
    "Ei": (1 << 60, 1),
}
_QUANTITY: Final = re.compile(r"\+?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_DURATION: Final = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,9})?(?:ms|[dhms]))+")
_PLAIN_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_DURATION_PART: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))?(ms|[dhms])")
_UNIT_MS: Final[Mapping[str, int]] = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
#: Longer texts are refused before any arithmetic: no honest quantity has so many digits.
_LONGEST: Final = 64


def parse_quantity(value: object, scale: int = 1) -> int:
    """Read a Kubernetes quantity as a whole number of 1/`scale` units, rounded up.

    Args:
        value: Text ("1.5Gi", "500m", "2e3", "0.5"), or a number.
        scale: How many of the result's units one whole unit has: 1000 for millicores.

    Raises:
        InvalidRequest: It is no quantity, or negative.
    """
    if type(value) is int and 0 <= value <= LARGEST_BYTES:
        return value * scale
    text = _as_text(value)
    match = _QUANTITY.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        raise InvalidRequest(f"{_quoted(text)} is no quantity: {_hint(text)}")
    fraction = match[2] or ""
    numerator, denominator = _SUFFIXES[match[4] or ""]
    exponent = int(match[3] or 0) - len(fraction)
    if abs(exponent) > 128:
        raise InvalidRequest(f"{_quoted(text)} has an exponent beyond reason")
    numerator *= int(f"{match[1]}{fraction}") * scale
    if exponent >= 0:
        return _divide_up(numerator * 10**exponent, denominator)
    return _divide_up(numerator, denominator * 10**-exponent)


def parse_cpu(value: object) -> int:
    """Read cores ("500m", 1.5, "4") as millicores."""
    return _bounded(parse_quantity(value, 1000), LARGEST_MILLICORES, "1,000,000 cores")


def parse_gpu(value: object) -> int:
    """Read devices, fractions allowed ("500m", 0.5, 2), as thousandths of a device."""
    return _bounded(parse_quantity(value, 1000), LARGEST_GPU_MILLIS, "1,000,000 devices")


def parse_bytes(value: object) -> int:
    """Read "8Gi", "500M", 1024 as bytes."""
    return _bounded(parse_quantity(value), LARGEST_BYTES, "4Pi")


def parse_count(value: object) -> int:
    """Read a whole count of an extended resource.

    Raises:
        InvalidRequest: It is no quantity, or not whole: a pod cannot be given half of such a device.
    """
    thousandths = parse_quantity(value, 1000)
    if thousandths % 1000:
        raise InvalidRequest(f"{_quoted(_as_text(value))} is not a whole count")
    return _bounded(thousandths // 1000, LARGEST_COUNT, "1,000,000,000")


def parse_option(option: str, parse: Callable[[object], int], value: object) -> int:
    """Read a value of the command line with one of the functions above.

    Raises:
        InvalidRequest: The error that `parse` raises, with the option's name in front.
    """
    try:
        return parse(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{option}: {error}") from None


def parse_duration(value: object) -> int:
    """Read "25m", "1h30m", "90s", "250ms", "1d", or a number of seconds, as milliseconds, rounded up.

    Raises:
        InvalidRequest: It is no duration, negative, or longer than ten years.
    """
    text = _as_text(value)
    if _PLAIN_NUMBER.fullmatch(text):
        return _bounded(parse_quantity(text, 1000), LARGEST_DURATION_MS, "ten years")
    if _DURATION.fullmatch(text) is None:
        if text.startswith("-"):
            raise InvalidRequest(f"{_quoted(text)} is no duration: it may not be negative")
        hint = 'write "25m", "1h30m", "90s", "250ms", or a number of seconds'
        raise InvalidRequest(f"{_quoted(text)} is no duration: {hint}")
    nanoparts = 0  # ms * 10**9, so that nine decimal places stay whole
    for whole, fraction, unit in _DURATION_PART.findall(text):
        nanoparts += int(whole + fraction.ljust(9, "0")) * _UNIT_MS[unit]
    return _bounded(_divide_up(nanoparts, 10**9), LARGEST_DURATION_MS, "ten years")


def parse_percent(value: object) -> int:
    """Read a factor (1.5) as per cent (150), rounded up."""
    return parse_quantity(value, 100)


def grow_memory(memory_bytes: int, factor_percent: int, attempt: int = 2) -> int:
    """The memory request of an attempt when all attempts before it ran out of memory.

    Args:
        memory_bytes: The request of the first attempt.
        factor_percent: 150 = one and a half times as much on each further attempt.
        attempt: 1 for the first.

    Returns:
        Bytes, rounded up once, and never above `LARGEST_BYTES`.
    """
    steps = max(attempt - 1, 0)
    grown = _divide_up(memory_bytes * factor_percent**steps, 100**steps)
    return min(grown, max(LARGEST_BYTES, memory_bytes))


def format_bytes(amount: int) -> str:
    """Say bytes as people do: "3 GiB", "1.5 MiB", "312 B". Rounded to a tenth."""
    if amount < 1024:
        return f"{amount} B"
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"), start=1):
        tenths = (amount * 20 + (1 << 10 * power)) // (2 << 10 * power)
        if tenths < 10240 or unit == "EiB":
            break
    return f"{_tenths(tenths)} {unit}"


def format_duration(milliseconds: int) -> str:
    """Say a duration in its two largest units: "1h 30m", "25m", "1.5s", "250ms"."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{_tenths(milliseconds // 100)}s"
    seconds = milliseconds // 1000
    amounts = (
        (seconds // 86400, "d"),
        (seconds // 3600 % 24, "h"),
        (seconds // 60 % 60, "m"),
        (seconds % 60, "s"),
    )
    first = next(i for i, (amount, _) in enumerate(amounts) if amount)
    return " ".join(f"{amount}{unit}" for amount, unit in amounts[first : first + 2] if amount)


def format_span(low_ms: int, high_ms: int) -> str:
    """Say from when until when something will come, counted from now, in one unit: "20-40 s", "3-5 min", "2-7 h"."""
    unit_ms, unit = next(
        (each for each in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")) if high_ms >= 2 * each[0]),
        (1_000, "s"),
    )
    low, high = max(0, low_ms) // unit_ms, max(1, -(-high_ms // unit_ms))
    return f"{low}-{high} {unit}" if low < high else f"{high} {unit}"


def format_cpu(millicores: int) -> str:
    """Say millicores as cores: "4", "1.5", "0.25"."""
    whole, thousandths = divmod(millicores, 1000)
    return f"{whole}.{thousandths:03d}".rstrip("0") if thousandths else str(whole)


def _as_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidRequest("a quantity is text or a number")
    if isinstance(value, int):
        if value.bit_length() > 128:
            raise InvalidRequest("a number beyond reason")
        return str(value)
    text = value.strip(" ") if isinstance(value, str) else repr(float(value))
    if len(text) > _LONGEST:
        raise InvalidRequest(f"a text of {len(text)} characters is no quantity")
    return text


#: How people write bytes elsewhere: 8GB, 256Mb, 1 GIB, 300 MBytes, 8K.
_UNIT_OF_BYTES: Final = re.compile(r"[0-9.]+ ?(?:k|[kmgtpe]i?b(?:ytes?)?)", re.IGNORECASE)


def _hint(text: str) -> str:
    if text.startswith("-"):
        return "it may not be negative"
    if _UNIT_OF_BYTES.fullmatch(text):
        letter = text.lstrip("0123456789. ")[0].upper()
        return f"write {letter}i (times 1024) or {letter.replace('K', 'k')} (times 1000), as in Kubernetes"
    return 'write a number, or one with a suffix as in Kubernetes: "500m", "8Gi", "2G"'


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 24 else f"{text[:24]}…")


def _bounded(value: int, largest: int, limit: str) -> int:
    if value > largest:
        raise InvalidRequest(f"at most {limit}")
    return value


def _divide_up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _tenths(tenths: int) -> str:
    return f"{tenths // 10}.{tenths % 10}" if tenths % 10 else str(tenths // 10)
