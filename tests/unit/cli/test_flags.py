"""Flags that are more than one value."""

from __future__ import annotations

import pytest

from edgellm.cli.flags import lora_adapters
from edgellm.errors import UsageError


@pytest.mark.parametrize(
    ("given", "adapter"),
    [
        ("style.gguf", ("style.gguf", 1.0)),
        ("style.gguf:0.5", ("style.gguf", 0.5)),
        ("style.gguf:-2", ("style.gguf", -2.0)),
        ("style.gguf:.25", ("style.gguf", 0.25)),
        ("style.gguf:1.", ("style.gguf", 1.0)),
        ("style.gguf:+1e-2", ("style.gguf", 0.01)),
        ("style.gguf:0", ("style.gguf", 0.0)),
        ("a:b.gguf", ("a:b.gguf", 1.0)),
        ("a:b.gguf:0.5", ("a:b.gguf", 0.5)),
        ("run:1:2", ("run:1", 2.0)),
        ("run:1", ("run", 1.0)),
        (r"C:\loras\style.gguf", (r"C:\loras\style.gguf", 1.0)),
        (r"C:\loras\style.gguf:2", (r"C:\loras\style.gguf", 2.0)),
        ("12", ("12", 1.0)),
        ("style.gguf:", ("style.gguf:", 1.0)),
        ("style.gguf:nan", ("style.gguf:nan", 1.0)),
        ("style.gguf:inf", ("style.gguf:inf", 1.0)),
        ("style.gguf:1_0", ("style.gguf:1_0", 1.0)),
        ("style.gguf: 1", ("style.gguf: 1", 1.0)),
        ("style.gguf:1e", ("style.gguf:1e", 1.0)),
        ("style.gguf:٣", ("style.gguf:٣", 1.0)),  # a digit, not of ours
    ],
)
def test_a_scale_is_what_follows_the_last_colon_if_it_is_a_number(given, adapter):
    """Else it is part of the file's name; a name that ends so takes a scale behind it."""
    assert lora_adapters([given]) == (adapter,)


def test_the_order_is_kept():
    """Also of one file given twice."""
    assert lora_adapters(["b", "a:2", "b"]) == (("b", 1.0), ("a", 2.0), ("b", 1.0))


@pytest.mark.parametrize("given", ["", ":1", ":-0.5"])
def test_an_adapter_needs_a_file(given):
    """An empty variable in a script must not load the current folder."""
    with pytest.raises(UsageError, match="names no file"):
        lora_adapters([given])


def test_bytes_that_are_no_text_are_refused():
    """As in every other argument."""
    with pytest.raises(UsageError, match="--lora: not UTF-8"):
        lora_adapters(["\udcff.gguf"])
