"""Bytes and rates as people write them."""

from __future__ import annotations

import pytest

from edgellm.units import format_bytes, format_rate


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
