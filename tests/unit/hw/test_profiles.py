"""Device profiles: every file that is shipped, the schema, and how a machine is recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.errors import UsageError
from edgellm.hw.flags import is_arm
from edgellm.hw.profiles import Profile, profile, profile_ids, profiles, read_profile, recognised

GIB = 1 << 30
NAMED_IN_THE_NOTES = (
    *("jetson-orin-nano-8gb", "jetson-orin-nano-super-8gb", "jetson-orin-nx-8gb"),
    *("jetson-orin-nx-16gb", "jetson-agx-orin-32gb", "jetson-agx-orin-64gb"),
    *("jetson-thor-t5000", "dgx-spark", "raspberry-pi-5-8gb", "raspberry-pi-4-8gb"),
    *("macbook-m1-8gb", "macbook-m2-8gb", "macbook-m3-16gb", "macbook-m4-16gb"),
    *("macbook-m5-16gb", "macbook-m4-pro-24gb", "macbook-m4-max-64gb"),
    *("macbook-m5-pro-24gb", "macbook-m5-max-64gb", "macbook-m6-16gb"),
    *("snapdragon-x-elite-16gb", "snapdragon-x2-elite-32gb"),
    *("snapdragon-x2-elite-extreme-48gb", "core-ultra-200v-32gb", "ryzen-ai-max-128gb"),
    *("laptop-rtx-4050-6gb", "laptop-rtx-4060-8gb", "laptop-rtx-4070-8gb"),
    *("laptop-rtx-5060-8gb", "office-ddr4-8gb", "office-ddr5-32gb"),
)
GOOD = """
name = "A board"
kind = "board"
source_url = "https://example.org/board"
verified = true
[memory]
total_gib = 8
usable_gib = 6.5
usable_evidence = "measured"
bandwidth_gb_s = 25.6
unified = false
[cpu]
isa = "Armv8.2-A"
n_cpus = 4
flags = ["asimd"]
"""


@pytest.fixture
def write(tmp_path: Path):
    """Return a function that writes a profile and reads it."""

    def write(text: str | bytes, name: str = "a-board.toml") -> Profile:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_profile(path)

    return write


def test_all_kinds_of_machine_are_there() -> None:
    """At least twenty, and each that the notes on devices name."""
    assert len(profile_ids()) >= 20
    assert set(NAMED_IN_THE_NOTES) <= set(profile_ids())


@pytest.mark.parametrize("name", profile_ids())
def test_a_profile_is_whole(name: str) -> None:
    """It can be read, its numbers are plausible, its source is a page, and its flags fit its ISA."""
    found = profile(name)
    assert found.id == name
    assert found.source_url.startswith("https://")
    assert 1 * GIB <= found.usable_bytes < found.total_bytes <= 128 * GIB
    assert 10 <= found.bandwidth_gb_s <= 700
    assert found.usable_evidence
    assert found.isa.startswith("Arm") is is_arm(found.flags)
    assert {"asimd", "sse2"} & found.flags
    if found.gpu is not None and not found.unified:
        assert found.gpu.total_bytes is not None
        assert found.gpu.bandwidth_gb_s is not None
        assert found.gpu.bandwidth_gb_s > found.bandwidth_gb_s
    if found.gpu is not None and found.gpu.kind == "cuda":
        assert found.gpu.compute_capability


@pytest.mark.parametrize("name", profile_ids())
def test_a_profile_is_a_machine(name: str) -> None:
    """Its facts say that a profile limits them, and one memory is not two."""
    found = profile(name)
    machine = found.machine()
    assert ("profile", name) == (machine.limited_by, machine.profile)
    assert (found.usable_bytes, found.total_bytes) == (machine.available_bytes, machine.total_bytes)
    assert machine.unified is (found.unified and found.gpu is not None)
    assert machine.share.n_threads == found.n_cpus


def test_a_file_is_read(write) -> None:
    """Fields as they stand; what is optional may be missing."""
    found = write(GOOD)
    assert ("a-board", "A board", "board", True) == (
        found.id,
        found.name,
        found.kind,
        found.verified,
    )
    assert (8 * GIB, int(6.5 * GIB), 25.6) == (
        found.total_bytes,
        found.usable_bytes,
        found.bandwidth_gb_s,
    )
    assert (None, "", {}) == (found.gpu, found.notes, dict(found.match))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "A board"', "", "name is missing"),
        ('name = "A board"', 'name = ""', "name is empty"),
        ("verified = true", "", "verified is missing"),
        ("verified = true", 'verified = "yes"', "verified must be true or false"),
        ("https://", "http://", "source_url must be an https:// address"),
        ('kind = "board"', 'kind = "phone"', "kind must be one of"),
        ("[cpu]", "speed = 1\n[cpu]", "memory.speed is unknown"),
        ("[memory]", "[other]\nx = 1\n[memory]", "other is unknown"),
        ("total_gib = 8", "total_gib = true", "memory.total_gib must be a number"),
        ("total_gib = 8", "total_gib = 1e9", "memory.total_gib must be a number"),
        ("total_gib = 8", "total_gib = nan", "memory.total_gib must be a number"),
        ("total_gib = 8", "total_gib = 4", "usable_gib is more than memory.total_gib"),
        ("bandwidth_gb_s = 25.6", "", "memory.bandwidth_gb_s is missing"),
        ("usable_evidence", "evidence", "memory.evidence is unknown"),
        ('["asimd"]', "[1]", "cpu.flags must be a list of texts"),
        ('["asimd"]', '"asimd"', "cpu.flags must be a list of texts"),
        ("n_cpus = 4", "n_cpus = 0", "cpu.n_cpus must be a number"),
        ("[cpu]", '[gpu]\nname = "x"\nkind = "cuda"\n[cpu]', "gpu.memory_gib is missing"),
        ("[cpu]", "[cpu", "no TOML"),
    ],
)
def test_a_file_is_held_against_the_schema(write, old: str, new: str, words: str) -> None:
    """The error names the file and the field."""
    assert old in GOOD
    with pytest.raises(UsageError, match=r"a-board\.toml") as caught:
        write(GOOD.replace(old, new))
    assert words in caught.value.message


@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * 70_000])
def test_a_file_that_is_none(write, content: bytes) -> None:
    """Bytes that are no text, and files without end."""
    with pytest.raises(UsageError):
        write(content)


def test_a_name_is_plain(write) -> None:
    """It is typed after `--device`."""
    with pytest.raises(UsageError, match="small letters"):
        write(GOOD, "A Board.toml")


def test_a_name_that_is_not_there() -> None:
    """What comes near is offered; a path is none."""
    with pytest.raises(UsageError) as caught:
        profile("orin-nano")
    assert "jetson-orin-nano-8gb" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        profile("../../etc/passwd")
    assert caught.value.hint == "run `edgellm devices`"


@pytest.mark.parametrize(
    ("told", "seen_gib", "expected"),
    [
        ({"device_tree": "NVIDIA Jetson Orin Nano Developer Kit"}, 7.4, "jetson-orin-nano-8gb"),
        (
            {"device_tree": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"},
            7.4,
            "jetson-orin-nano-super-8gb",
        ),
        ({"device_tree": "Raspberry Pi 5 Model B Rev 1.0"}, 7.87, "raspberry-pi-5-8gb"),
        ({"device_tree": "Raspberry Pi 5 Model B Rev 1.0"}, 3.9, "raspberry-pi-5-4gb"),
        ({"cpu": "Apple M4"}, 16, "macbook-m4-16gb"),
        ({"cpu": "Apple M4 Pro"}, 24, "macbook-m4-pro-24gb"),
        ({"cpu": "Apple M4"}, 24, None),
        ({"gpu": "NVIDIA GeForce RTX 4060 Laptop GPU"}, 15.6, "laptop-rtx-4060-8gb"),
        ({"cpu": "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S"}, 125, "ryzen-ai-max-128gb"),
        ({"cpu": "Intel(R) Xeon(R) Processor"}, 24, None),
        ({}, 8, None),
    ],
)
def test_a_machine_is_recognised(
    told: dict[str, str], seen_gib: float, expected: str | None
) -> None:
    """By what it calls itself and how much memory it shows; the more exact name wins."""
    found = recognised(told, int(seen_gib * GIB))
    assert expected == (None if found is None else found.id)


def test_all_at_once() -> None:
    """The list is in the order of the names."""
    assert list(profile_ids()) == sorted(found.id for found in profiles())
