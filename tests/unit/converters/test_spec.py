"""config.json in both dialects, and what is refused in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.converters import recipe_for, supported
from edgellm.converters.rope import Rope, llama3_factors
from edgellm.converters.spec import Config, architecture_of, read_spec, refuse_quantized
from edgellm.errors import ConvertError, ModelUnsupported, UnknownArchitecture

V4: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 320,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def config(**changes: Any) -> Config:
    values = {key: value for key, value in {**V4, **changes}.items() if value is not ...}
    return Config(json.loads(json.dumps(values)), Path("config.json"))


def test_both_dialects_say_the_same() -> None:
    """`rope_scaling` beside `rope_theta` and `rope_parameters` give one spec."""
    old = config(rope_scaling={**LLAMA3})
    new = config(rope_theta=..., rope_parameters={**LLAMA3, "rope_theta": 10000.0})
    nested = config(
        rope_theta=..., rope_parameters={"full_attention": {**LLAMA3, "rope_theta": 10000.0}}
    )
    assert read_spec(old) == read_spec(new) == read_spec(nested)
    assert read_spec(old).rope == Rope("llama3", 10000.0, 8.0, 64, 1.0, 4.0)


def test_old_name_of_the_rope_kind() -> None:
    """Early configurations say `type`."""
    rope = read_spec(config(rope_scaling={"type": "linear", "factor": 2.0})).rope
    assert rope == Rope("linear", 10000.0, 2.0)


@pytest.mark.parametrize("whole", [1, 1.0, None])
def test_a_rotation_of_the_whole_head_may_be_said_aloud(whole: float | None) -> None:
    """In either place, and a null says nothing."""
    assert read_spec(config(partial_rotary_factor=whole)) == read_spec(config())
    inside = {**LLAMA3, "partial_rotary_factor": whole}
    assert read_spec(config(rope_scaling=inside)) == read_spec(config(rope_scaling={**LLAMA3}))


def test_a_missing_theta_is_an_error_with_a_way_out() -> None:
    """The base of the rotation is never made up."""
    with pytest.raises(ConvertError, match="rope_theta is missing") as caught:
        read_spec(config(rope_theta=...))
    assert '"rope_theta": 10000.0' in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "warp9", "factor": 2.0}}, "'warp9' is not understood"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"factor": 2.0}}, "no rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope factor is missing"),
        ({"rope_scaling": {**LLAMA3, "surprise": 1}}, "'surprise'"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "not below"),
        ({"rope_scaling": [1]}, "an object is needed"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"partial_rotary_factor": "1"}, "partial_rotary_factor is '1'"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor is 0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        (
            {"partial_rotary_factor": 0.5, "rope_scaling": {**LLAMA3, "partial_rotary_factor": 1}},
            "partial_rotary_factor is 0.5",
        ),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta is 10000.0 and 5.0"),
        ({"rope_parameters": {"a": {}, "full_attention": {}}}, "differ by layer type"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "does not divide by 5"),
        ({"num_key_value_heads": 3}, "do not divide by 3"),
        ({"head_dim": 15}, "odd"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "1"}, "num_hidden_layers is '1'"),
        ({"num_hidden_layers": 10**9}, "from 1 to"),
        ({"num_hidden_layers": True}, "num_hidden_layers is 'True'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"vocab_size": -1}, "vocab_size"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """A wrong value is an error that names its key, never a default."""
    with pytest.raises(ConvertError, match=message):
        read_spec(config(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"hidden_act": "gelu"}, {"sliding_window": 128}, {"num_local_experts": 8}],
)
def test_what_the_engine_does_not_compute_is_refused(changes: dict[str, Any]) -> None:
    """A llama graph has silu and full attention only."""
    asked = config(**changes)
    with pytest.raises(ConvertError, match=next(iter(changes))):
        recipe_for("LlamaForCausalLM").check(asked, read_spec(asked))


def test_head_dim_follows_from_the_others_or_is_given() -> None:
    """An explicit head width wins over hidden size by heads."""
    assert read_spec(config()).head_dim == 16
    wide = read_spec(config(head_dim=32))
    assert (wide.head_dim, wide.head_dim_is_given) == (32, True)


def test_architecture_comes_from_the_list_or_the_type() -> None:
    """Without `architectures`, `model_type` llama is enough; nothing else is guessed."""
    assert architecture_of(config(architectures=..., model_type="llama")) == "LlamaForCausalLM"
    for changes in ({"architectures": ...}, {"architectures": ["A", "B"]}, {"architectures": "A"}):
        with pytest.raises(ConvertError, match="architectures must name one class"):
            architecture_of(config(**changes))


def test_an_unknown_architecture_lists_the_known() -> None:
    """The error names what can be converted and the nearest spelling."""
    with pytest.raises(UnknownArchitecture) as caught:
        recipe_for("LlamaForCasualLM")
    assert "did you mean LlamaForCausalLM" in caught.value.hint
    assert all(name in caught.value.hint for name in supported())


def test_quantised_checkpoints_are_refused() -> None:
    """`quantization_config` is read before any tensor."""
    with pytest.raises(ModelUnsupported, match="bitsandbytes") as caught:
        refuse_quantized(config(quantization_config={"quant_method": "bitsandbytes"}))
    assert "original" in caught.value.hint


def test_llama3_factors_leave_short_waves_and_stretch_long_ones() -> None:
    """Wavelengths below context / high stay, above context / low are divided by the factor."""
    rope = Rope("llama3", 10000.0, 8.0, 64, 1.0, 4.0)
    factors = llama3_factors(rope, 16)
    waves = 2 * np.pi * 10000.0 ** (np.arange(0, 16, 2) / 16)
    assert (factors[waves < 16] == 1).all()
    assert (factors[waves > 64] == 8).all()
    between = factors[(waves > 16) & (waves < 64)]
    assert ((between > 1) & (between < 8)).all()
    assert factors.dtype == np.float32
