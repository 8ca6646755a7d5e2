"""Bytes and rates as people write them."""

from __future__ import annotations

import pytest

from edgellm.errors import UsageError
from edgellm.units import format_bytes, format_rate, parse_bytes


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (91_739_212, "91.7 MB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (999_999_999, "1.0 GB"),
        (2_000_000_000_000_000, "2000.0 TB"),
    ],
)
def test_bytes_are_written_with_one_decimal(n_bytes: int, text: str) -> None:
    """Decimal units, and never 1000.0 of one where 1.0 of the next is meant."""
    assert text == format_bytes(n_bytes)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("0", 0),
        ("1234", 1234),
        ("500MB", 500_000_000),
        (" 2 GiB ", 2 << 30),
        ("64k", 64 << 10),
        ("1.5kb", 1500),
        ("0.5 gib", 1 << 29),
        ("9007199254740993", 9007199254740993),
        ("0.001g", 1073741),
    ],
)
def test_sizes_are_read_exactly(text: str, n_bytes: int) -> None:
    """Large whole numbers lose no bit on the way."""
    assert n_bytes == parse_bytes(text)


@pytest.mark.parametrize(
    "text", ["", "MB", "-1", "1 parsec", "1e9", "0x10", "1,5k", "nan", "٣", "9" * 400, "9" * 5000]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """The error repeats the text and names the units."""
    with pytest.raises(UsageError, match="not a size") as caught:
        parse_bytes(text)
    assert "gib" in str(caught.value)


def test_a_rate_without_time_is_a_dash() -> None:
    """No division by the zero seconds that an empty answer took."""
    assert ("12.3 tokens/s", "-") == (format_rate(24.6, 2, "tokens"), format_rate(1, 0, "tokens"))
