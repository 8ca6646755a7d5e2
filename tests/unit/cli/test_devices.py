"""`edgellm devices`: the list, one of it, and the same for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.hw.profiles import profile_ids

if TYPE_CHECKING:
    from typing import Any


def test_the_list(cli: Any) -> None:
    """A row a profile, below a heading."""
    result = cli("devices")
    assert (result.code, result.err) == (0, "")
    heading, *rows = result.out.splitlines()
    assert heading.split() == ["NAME", "MEMORY", "USABLE", "GB/S", "GPU", "VERIFIED"]
    assert [row.split()[0] for row in rows] == list(profile_ids())


def test_one(cli: Any) -> None:
    """All that is known of it, with the source."""
    result = cli("devices", "laptop-rtx-4060-8gb")
    assert "compute capability 8.9" in result.out
    assert "https://" in result.out
    assert "8.6 GB at 256" in result.out


def test_one_that_is_not_there(cli: Any) -> None:
    """A usage error with what comes near."""
    result = cli("devices", "orin-nx")
    assert result.code == 2
    assert "did you mean jetson-orin-nx-16gb, jetson-orin-nx-8gb?" in result.err


def test_for_programs(cli: Any) -> None:
    """An object a line, with bytes as numbers."""
    lines = cli("devices", "--json").lines
    assert [line["name"] for line in lines] == list(profile_ids())
    one = cli("devices", "raspberry-pi-5-8gb", "--json").lines[0]
    assert (one["type"], one["total_bytes"], one["gpu"]) == ("device", 8 << 30, None)
