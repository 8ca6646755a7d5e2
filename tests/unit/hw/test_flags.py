"""CPU flags: as the kernel lists them, and what the engine's kernels make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgellm.hw import flags
from edgellm.hw.flags import cpu_flags, is_arm, missing_flags, slow_types, sysctl_flags

if TYPE_CHECKING:
    from pathlib import Path

NEHALEM = "fpu sse sse2 pni ssse3 sse4_1 sse4_2 popcnt lahf_lm"
SANDY_BRIDGE = f"{NEHALEM} avx aes"
HASWELL = f"{SANDY_BRIDGE} avx2 f16c fma bmi2"
PI4 = "fp asimd evtstrm crc32 cpuid"
PI5 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
ALL_TYPES = ("f32", "f16", "bf16", "q4_0", "q4_K", "q8_0", "tq1_0", "q2_0")


def has(text: str) -> frozenset[str]:
    """Return a set of flags."""
    return frozenset(text.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"processor\t: 0\nflags\t\t: {HASWELL}\n", has(HASWELL)),
        (f"processor\t: 0\nFeatures\t: {PI5}\n", has(PI5)),
        (f"flags : {HASWELL}\n\nflags : {NEHALEM}\n", has(NEHALEM)),
        ("processor : 0\nmodel name : x\n", frozenset()),
        ("", frozenset()),
        ("flags\n", frozenset()),
    ],
)
def test_cpuinfo(tmp_path: Path, text: str, expected: frozenset[str]) -> None:
    """x86 and ARM name the line otherwise; of cores that differ what all have counts."""
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert expected == cpu_flags(file, "Linux")


def test_nobody_tells(tmp_path: Path) -> None:
    """No file, or one of bytes: no flags, and no error."""
    assert frozenset() == cpu_flags(tmp_path / "none", "Linux")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00flags : \xff\n")
    assert frozenset() == cpu_flags(tmp_path / "bytes", "Linux")


def test_macs_are_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sysctl hw.optional` in Linux' names; what is 0 is not there."""
    text = (
        "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\n"
        "hw.optional.AdvSIMD: 1\nhw.optional.floatingpoint: 1\n"
    )
    assert {"asimddp", "asimd"} == sysctl_flags(text)
    monkeypatch.setattr(flags, "_sysctl", lambda: text)
    assert is_arm(cpu_flags(system="Darwin"))


@pytest.mark.parametrize(
    ("text", "slow"),
    [
        (NEHALEM, ("f16", "bf16", "q4_K", "q8_0", "tq1_0", "q2_0")),
        (SANDY_BRIDGE, ("f16", "tq1_0", "q2_0")),
        (HASWELL, ("q2_0",)),
        (PI4, ("bf16",)),
        (PI5, ("bf16",)),
        ("", ()),
    ],
)
def test_types_without_vector_code(text: str, slow: tuple[str, ...]) -> None:
    """By the oldest instruction set that ggml has code for; unknown flags call nothing slow."""
    assert slow == slow_types(ALL_TYPES, has(text))


def test_types_that_hold_no_weights() -> None:
    """Integers of a model are not multiplied, and a type nobody knows is nobody's."""
    assert () == slow_types(("i32", "q9_9"), has(NEHALEM))


def test_every_type_of_weights_is_in_the_tables() -> None:
    """A type that ggml gets is looked at before it is called fast."""
    from edgellm.ggml_types import TYPES_BY_NAME

    no_weights = {"i8", "i16", "i32", "i64", "f64", "q8_1", "q8_K"}
    assert set(TYPES_BY_NAME) - no_weights == set(flags._X86_NEEDS) == set(flags._ARM_NEEDS)


@pytest.mark.parametrize(
    ("build", "text", "missing"),
    [
        (("sse3", "avx", "avx2", "f16c", "fma", "bmi2"), HASWELL, ()),
        (("sse3", "avx", "avx2", "f16c"), SANDY_BRIDGE, ("avx2", "f16c")),
        (("avx512",), HASWELL, ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
        (("neon", "dotprod"), PI4, ("asimddp",)),
        (("neon", "dotprod", "fp16_va"), PI5, ()),
        (("avx2",), "", ()),
        (("llamafile",), HASWELL, ()),
    ],
)
def test_what_a_build_takes_for_granted(
    build: tuple[str, ...], text: str, missing: tuple[str, ...]
) -> None:
    """Names of ggml against Linux'; unknown flags miss nothing."""
    assert missing == missing_flags(build, has(text))


def test_this_machine() -> None:
    """The real file, whatever it says."""
    found = cpu_flags()
    assert isinstance(found, frozenset)
    assert all(found)
