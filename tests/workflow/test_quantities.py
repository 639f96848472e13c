"""Quantities and durations: exact, rounded up, and said back."""

from decimal import ROUND_CEILING, Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.errors import InvalidRequest
from flowsched.workflow import resources
from flowsched.workflow.resources import (
    format_bytes,
    format_cpu,
    format_duration,
    format_span,
    grow_memory,
    parse_bytes,
    parse_count,
    parse_cpu,
    parse_duration,
    parse_gpu,
    parse_quantity,
)

FACTORS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
    "m": Decimal("0.001"),
    "u": Decimal("0.000001"),
    "n": Decimal("0.000000001"),
}


@given(st.decimals(0, 10**9, places=6), st.sampled_from(sorted(FACTORS)), st.sampled_from([1, 100, 1000]))
def test_quantities_are_those_of_decimal_arithmetic(number: Decimal, suffix: str, scale: int) -> None:
    """Exactly, and rounded up."""
    with localcontext(prec=100):
        expected = (number * FACTORS[suffix] * scale).to_integral_value(ROUND_CEILING)
    assert parse_quantity(f"{number:f}{suffix}", scale) == int(expected)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_cpu, "500m", 500),
        (parse_cpu, 1.5, 1500),
        (parse_cpu, "4", 4000),
        (parse_cpu, 0.1, 100),
        (parse_cpu, "1u", 1),
        (parse_cpu, 0, 0),
        (parse_gpu, 0.5, 500),
        (parse_gpu, 2, 2000),
        (parse_bytes, "8Gi", 8_589_934_592),
        (parse_bytes, "500M", 500_000_000),
        (parse_bytes, "2k", 2_000),
        (parse_bytes, "1e3", 1_000),
        (parse_bytes, "1E3", 1_000),
        (parse_bytes, "1.5e-1", 1),
        (parse_bytes, ".5Ki", 512),
        (parse_bytes, "5.", 5),
        (parse_bytes, "+5", 5),
        (parse_bytes, " 1Gi ", 1_073_741_824),
        (parse_bytes, "4Pi", 4_503_599_627_370_496),
        (parse_count, "2k", 2000),
        (parse_count, 3.0, 3),
        (parse_duration, "25m", 1_500_000),
        (parse_duration, "1h30m", 5_400_000),
        (parse_duration, "90s", 90_000),
        (parse_duration, "250ms", 250),
        (parse_duration, "1.5h", 5_400_000),
        (parse_duration, "2d", 172_800_000),
        (parse_duration, "0.0001s", 1),
        (parse_duration, 90, 90_000),
        (parse_duration, "90", 90_000),
        (parse_duration, 0.25, 250),
    ],
)
def test_what_people_write(parse: object, text: object, value: int) -> None:
    """In each unit."""
    assert parse(text) == value  # type: ignore[operator]


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        (
            parse_bytes,
            "8GB",
            "'8GB' is no quantity: write Gi (times 1024) or G (times 1000), as in Kubernetes",
        ),
        *(
            (
                parse_bytes,
                text,
                f"'{text}' is no quantity: write Mi (times 1024) or M (times 1000), as in Kubernetes",
            )
            for text in ("256Mb", "256mb", "256 MIB", "256MBytes", "256mib")
        ),
        (
            parse_bytes,
            "8gb",
            "'8gb' is no quantity: write Gi (times 1024) or G (times 1000), as in Kubernetes",
        ),
        (parse_bytes, "8K", "'8K' is no quantity: write Ki (times 1024) or k (times 1000), as in Kubernetes"),
        (parse_bytes, "-1", "'-1' is no quantity: it may not be negative"),
        (parse_bytes, -1, "'-1' is no quantity: it may not be negative"),
        (parse_bytes, "5Pi", "at most 4Pi"),
        (parse_bytes, "1e200", "'1e200' has an exponent beyond reason"),
        (parse_bytes, 10**500, "a number beyond reason"),
        (parse_bytes, "9" * 100, "a text of 100 characters is no quantity"),
        (parse_bytes, True, "a quantity is text or a number"),
        (parse_bytes, None, "a quantity is text or a number"),
        (parse_cpu, "1000001", "at most 1,000,000 cores"),
        (parse_count, "0.5", "'0.5' is not a whole count"),
        (
            parse_duration,
            "20y",
            '\'20y\' is no duration: write "25m", "1h30m", "90s", "250ms", or a number of seconds',
        ),
        (parse_duration, "4000d", "at most ten years"),
    ],
)
def test_what_is_no_quantity(parse: object, text: object, reason: str) -> None:
    """The message says what would be one."""
    with pytest.raises(InvalidRequest) as raised:
        parse(text)  # type: ignore[operator]
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    "text", ["", ".", "x", "1 Gi", "1.2.3", "e3", "1e", "0x10", "١", "nan", "inf", "1Gi\n"]
)
def test_other_texts_are_refused(text: str) -> None:
    """Digits of other scripts and special floats among them."""
    with pytest.raises(InvalidRequest):
        parse_quantity(text)


@given(st.text() | st.floats() | st.integers() | st.none() | st.booleans())
def test_nothing_but_a_refusal_or_a_whole_number_comes_back(value: object) -> None:
    """From any value, by every function."""
    for name in ("parse_quantity", "parse_bytes", "parse_cpu", "parse_gpu", "parse_count", "parse_duration"):
        try:
            result = getattr(resources, name)(value)
        except InvalidRequest:
            continue
        assert isinstance(result, int)
        assert result >= 0


def test_memory_grows_from_attempt_to_attempt() -> None:
    """100 bytes by one and a half, rounded up once; the first attempt has what was asked for."""
    assert [grow_memory(100, 150, attempt) for attempt in (0, 1, 2, 3, 4)] == [100, 100, 150, 225, 338]
    assert grow_memory(100, 150) == 150
    assert grow_memory(1 << 33, 1000, 100) == 1 << 52


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (8_589_934_592, "8 GiB"),
        (1_048_575, "1 MiB"),
        (1 << 60, "1 EiB"),
        (5000 << 60, "5000 EiB"),
    ],
)
def test_bytes_are_said_in_the_largest_unit(amount: int, said: str) -> None:
    """With one decimal at most."""
    assert format_bytes(amount) == said


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (0, "0ms"),
        (250, "250ms"),
        (1_500, "1.5s"),
        (59_999, "59.9s"),
        (60_000, "1m"),
        (5_400_000, "1h 30m"),
        (86_400_000, "1d"),
        (90_061_000, "1d 1h"),
    ],
)
def test_durations_are_said_in_two_units(milliseconds: int, said: str) -> None:
    """And never rounded up."""
    assert format_duration(milliseconds) == said


@pytest.mark.parametrize(
    ("millicores", "said"), [(4000, "4"), (1500, "1.5"), (250, "0.25"), (1, "0.001"), (0, "0")]
)
def test_millicores_are_said_as_cores(millicores: int, said: str) -> None:
    """Without needless zeros."""
    assert format_cpu(millicores) == said


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "said"),
    [
        (-5_000, 0, "0-1 s"),
        (20_000, 40_000, "20-40 s"),
        (100_000, 119_000, "100-119 s"),
        (100_000, 120_000, "1-2 min"),
        (200_000, 250_000, "3-5 min"),
        (240_000, 240_000, "4 min"),
        (7_200_000, 25_000_000, "2-7 h"),
        (100_000_000, 400_000_000, "1-5 d"),
    ],
)
def test_a_span_has_one_unit(low_ms: int, high_ms: int, said: str) -> None:
    """The unit of which its end is at least two; the begin is rounded down, the end up."""
    assert format_span(low_ms, high_ms) == said
