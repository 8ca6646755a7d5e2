"""The quantisers: numpy against the engine's own library, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gguf import quants

from edgellm.errors import EngineUnavailable, MissingExtra
from edgellm.kernels import _blocks, ggml
from edgellm.kernels.ggml import GgmlType

IN_NUMPY = [GgmlType[name] for name in _blocks.QUANTIZE]
BACK = [ggml_type for ggml_type in GgmlType if ggml.can_dequantize(ggml_type)]
NOT_IN_GGUF = {GgmlType.Q1_0, GgmlType.Q2_0}


@pytest.fixture
def engine() -> None:
    """Fail where numpy would only be compared with itself."""
    assert ggml.library_path() is not None, "install edgellm[llama]: the engine is the measure"


@pytest.fixture
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as on a machine where no engine is installed."""
    monkeypatch.setattr(ggml, "_library", lambda: None)


def _edges() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    rows = {
        "zeros": np.zeros((1, 32)),
        "minus-zeros": -np.zeros((1, 32)),
        "mixed-zeros": np.array([[0.0, -0.0] * 16]),
        "smallest": np.full((1, 32), 1e-45),
        "denormal-scale": rng.normal(size=(64, 32)) * 1e-39,
        "tiny": rng.normal(size=(64, 32)) * 3e-38,
        "half-denormal": rng.normal(size=(64, 32)) * 1e-7,
        "largest": np.full((1, 32), np.finfo(np.float32).max),
        "huge": rng.normal(size=(64, 32)) * 1e37,
        "half-overflow": (rng.integers(0, 2, (64, 32)) * 2 - 1) * 65520.0,
        "ties-of-q4": rng.integers(-16, 17, (256, 32)) / 2,
        "ties-of-q8": rng.integers(-254, 255, (256, 32)) / 2,
        "equal-extremes": np.array([[-3.0, 3.0] * 16, [3.0, -3.0] * 16]),
        "one-value": np.eye(32) * -5,
    }
    return {name: values.astype(np.float32) for name, values in rows.items()}


@pytest.mark.parametrize("ggml_type", IN_NUMPY, ids=lambda t: t.name)
@pytest.mark.parametrize("case", _edges())
def test_numpy_quantises_edges_as_the_engine_does(
    engine: None, case: str, ggml_type: GgmlType
) -> None:
    """Zeros, denormals, overflow and every kind of tie give the library's bytes."""
    x = _edges()[case]
    expected = ggml.quantize(x, ggml_type)
    np.testing.assert_array_equal(expected, _blocks.quantize_rows(ggml_type.name, x))


@pytest.mark.parametrize("ggml_type", IN_NUMPY, ids=lambda t: t.name)
def test_numpy_quantises_weights_as_the_engine_does(engine: None, ggml_type: GgmlType) -> None:
    """Normal data over more than one slab gives the library's bytes."""
    x = np.random.default_rng(3).normal(size=(37, 4096)).astype(np.float32) * np.float32(0.02)
    expected = ggml.quantize(x, ggml_type)
    np.testing.assert_array_equal(expected, _blocks.quantize_rows(ggml_type.name, x))


@pytest.mark.parametrize("ggml_type", [GgmlType.F16, GgmlType.BF16], ids=lambda t: t.name)
def test_not_a_number_stays_one(engine: None, ggml_type: GgmlType) -> None:
    """Infinities and NaN of either sign are kept as the library keeps them."""
    bits = np.array([[0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF, 0x7F800000, 0xFF800000]])
    x = bits.astype(np.uint32).view(np.float32)
    expected = ggml.quantize(x, ggml_type)
    np.testing.assert_array_equal(expected, _blocks.quantize_rows(ggml_type.name, x))


@pytest.mark.parametrize("ggml_type", sorted(ggml.WRITTEN), ids=lambda t: t.name)
def test_our_sizes_are_the_engines(ggml_type: GgmlType) -> None:
    """Every type edgellm writes is quantised into as many bytes as `row_bytes` says."""
    x = np.random.default_rng(5).normal(size=(3, 512)).astype(np.float32)
    assert ggml.quantize(x, ggml_type).shape == (3, ggml.row_bytes(ggml_type, 512))


def any_blocks(ggml_type: GgmlType) -> tuple[np.ndarray, int]:
    """Make 500 rows of random bytes, scales that are no numbers included, and their length."""
    n = 2 * ggml.traits(ggml_type).block_size
    n_bytes = ggml.row_bytes(ggml_type, n)
    return np.random.default_rng(9).integers(0, 256, (500, n_bytes), dtype=np.uint8), n


@pytest.mark.parametrize("ggml_type", [t for t in BACK if t not in NOT_IN_GGUF])
def test_blocks_expand_as_gguf_expands_them(engine: None, ggml_type: GgmlType) -> None:
    """Any bytes at all give the bits of gguf-py's reader, in every type the engine runs."""
    blocks, n = any_blocks(ggml_type)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(blocks, quants.GGMLQuantizationType(int(ggml_type)))
    np.testing.assert_array_equal(expected, ggml.dequantize(blocks, ggml_type, n))


@pytest.mark.parametrize("ggml_type", [GgmlType.Q8_0, GgmlType.Q4_K, GgmlType.IQ4_NL])
def test_without_an_engine_blocks_expand_the_same(
    monkeypatch: pytest.MonkeyPatch, ggml_type: GgmlType
) -> None:
    """gguf-py does what the library does."""
    blocks, n = any_blocks(ggml_type)
    expected = ggml.dequantize(blocks, ggml_type, n)
    monkeypatch.setattr(ggml, "_library", lambda: None)
    np.testing.assert_array_equal(expected, ggml.dequantize(blocks, ggml_type, n))
    assert ggml.dequantize(blocks[:0], ggml_type, n).shape == (0, n)


def test_what_has_no_way_back_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers and the types of half-done arithmetic never, two types only with the engine."""
    never = {t.name for t in GgmlType if not ggml.can_dequantize(t)}
    assert never == {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
    monkeypatch.setattr(ggml, "_library", lambda: None)
    assert not any(ggml.can_dequantize(t) for t in NOT_IN_GGUF)
    with pytest.raises(ValueError, match="does not know Q1_0"):
        ggml.dequantize(np.zeros((1, 18), np.uint8), GgmlType.Q1_0, 128)


@pytest.mark.parametrize("ggml_type", sorted(NOT_IN_GGUF))
def test_one_and_two_bits_expand_to_their_few_values(ggml_type: GgmlType) -> None:
    """What gguf-py does not know has as many values as bits allow, times the block's scale."""
    size = ggml.traits(ggml_type).block_size
    blocks = np.random.default_rng(2).integers(0, 256, (50, 18), dtype=np.uint8)
    blocks[:, :2] = np.array([1.0], "<f2").view(np.uint8)
    found = set(ggml.dequantize(blocks, ggml_type, size).ravel().tolist())
    assert found == ({-1.0, 1.0} if ggml_type is GgmlType.Q1_0 else {-1.0, 0.0, 1.0, 2.0})


@pytest.mark.parametrize("ggml_type", [GgmlType.Q8_0, GgmlType.Q4_0, GgmlType.Q4_1])
def test_a_value_comes_back_within_its_step(ggml_type: GgmlType) -> None:
    """Quantised and expanded, no value moves by more than one step of its block."""
    x = np.random.default_rng(11).normal(size=(64, 256)).astype(np.float32)
    back = ggml.dequantize(ggml.quantize(x, ggml_type), ggml_type, 256)
    levels = 127 if ggml_type is GgmlType.Q8_0 else 7
    reach = np.abs(x.reshape(64, -1, 32)).max(axis=2, keepdims=True)
    assert (np.abs(back - x).reshape(64, -1, 32) <= 1.01 * reach / levels).all()


def test_threads_quantise_slabs_of_one_tensor() -> None:
    """Slabs of rows done by threads are the tensor done at once."""
    x = np.random.default_rng(13).normal(size=(256, 1024)).astype(np.float32)
    with ThreadPoolExecutor(2) as pool:
        slabs = pool.map(lambda i: ggml.quantize(x[i : i + 32], GgmlType.Q4_K), range(0, 256, 32))
        np.testing.assert_array_equal(ggml.quantize(x, GgmlType.Q4_K), np.concatenate([*slabs]))


def test_without_an_engine_numpy_gives_the_same_bytes(without_engine: None) -> None:
    """The simple types need no engine at all."""
    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    assert ggml.quantize(x, GgmlType.Q8_0).shape == (2, 34)


def test_without_an_engine_other_types_name_the_install(without_engine: None) -> None:
    """What only the engine can do says how to get it."""
    with pytest.raises(MissingExtra, match=r"Q4_K .*pip install 'llama-cpp-python"):
        ggml.quantize(np.zeros((1, 256), np.float32), GgmlType.Q4_K)


def test_a_library_with_other_sizes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ggml whose blocks differ from ours would write nonsense, so it is not used."""
    wrong = {**ggml.TRAITS, GgmlType.Q8_0: ggml.TypeTraits(32, 36)}
    monkeypatch.setattr(ggml, "TRAITS", wrong)
    ggml._library.cache_clear()
    with pytest.raises(EngineUnavailable, match=r"Q8_0 is TypeTraits.*34.*36"):
        ggml._library()


@pytest.mark.parametrize("n", [-32, 1, 31, 33])
def test_a_row_that_fills_no_blocks_is_refused(n: int) -> None:
    """The block size is named."""
    with pytest.raises(ValueError, match="blocks of 32"):
        ggml.row_bytes(GgmlType.Q4_0, n)


def test_wrong_input_is_refused() -> None:
    """Kind and rank are checked before a pointer is taken."""
    with pytest.raises(TypeError, match="float32, not float64"):
        ggml.quantize(np.zeros((1, 32)), GgmlType.Q8_0)
    with pytest.raises(ValueError, match="not shape"):
        ggml.quantize(np.zeros(32, np.float32), GgmlType.Q8_0)
    with pytest.raises(TypeError, match="uint8, not int8"):
        ggml.dequantize(np.zeros((1, 34), np.int8), GgmlType.Q8_0, 32)
    with pytest.raises(ValueError, match="has 34 bytes"):
        ggml.dequantize(np.zeros((1, 33), np.uint8), GgmlType.Q8_0, 32)
    with pytest.raises(ValueError, match="not know Q8_K"):
        ggml.dequantize(np.zeros((1, 292), np.uint8), GgmlType.Q8_K, 256)
    with pytest.raises(ValueError, match="nothing is quantised to IQ2_XXS"):
        ggml.quantize(np.zeros((1, 256), np.float32), GgmlType.IQ2_XXS)


def test_no_rows_are_no_bytes() -> None:
    """An empty tensor is legal."""
    assert ggml.quantize(np.zeros((0, 64), np.float32), GgmlType.Q4_0).shape == (0, 36)


def test_a_strided_source_is_read_in_order() -> None:
    """A transposed view gives what its contiguous copy gives."""
    x = np.random.default_rng(17).normal(size=(64, 96)).astype(np.float32)
    expected = ggml.quantize(np.ascontiguousarray(x.T), GgmlType.Q4_0)
    np.testing.assert_array_equal(expected, ggml.quantize(x.T, GgmlType.Q4_0))


def test_quantising_never_imports_the_engine() -> None:
    """The library is opened by path: llama_cpp stays out, with its start-up cost."""
    program = (
        "import sys, numpy; from edgellm.kernels import ggml;"
        "ggml.quantize(numpy.zeros((1, 32), 'f4'), ggml.GgmlType.Q4_1);"
        "sys.exit('llama_cpp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
