"""Bytes and rates as people write them."""

from __future__ import annotations

import pytest

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


def test_a_rate_without_time_is_a_dash() -> None:
    """No division by the zero seconds that an empty answer took."""
    assert ("12.3 tokens/s", "-") == (format_rate(24.6, 2, "tokens"), format_rate(1, 0, "tokens"))


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("12B", 12),
        ("800k", 800_000),
        ("20GB", 20_000_000_000),
        (" 20 gib ", 20 << 30),
        ("1.5 MiB", 3 << 19),
        ("2t", 2_000_000_000_000),
        ("1.0005kB", 1000),
    ],
)
def test_bytes_are_read_as_people_write_them(text: str, n_bytes: int) -> None:
    """Decimal and binary units, in either case, with or without the B."""
    assert n_bytes == parse_bytes(text)


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "5x", "5i", "5ki", "1.", "1 2", "9" * 19])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    """The message repeats what was written."""
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_bytes(text)
