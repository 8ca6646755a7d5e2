"""What a vocabulary says of its tokens is what asking the engine token by token says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from edgellm.engines.llamacpp.asked import CONTROL, UNKNOWN
from edgellm.engines.llamacpp.vocab_only import VocabOnly
from edgellm.engines.llamacpp.vocabulary import Vocabulary

NORMAL_TYPE, UNKNOWN_TYPE, CONTROL_TYPE, USER_TYPE, UNUSED_TYPE, BYTE_TYPE = range(1, 7)
KNOWN_TEXTS = (
    *("</s>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|im_end|>", "<eos>", "<EOT>"),
    *("<|tool_response>", "<|channel|>", "<|start|>", "<PAD>", "<REPO>", "<|eom_id|>", "<PRE>"),
)
MakeVocabulary = Callable[..., Path]


@pytest.fixture
def vocabulary_of(tmp_path: Path) -> MakeVocabulary:
    """Write a model of a vocabulary alone: its kind, and tokens with their types after the bytes'."""
    import gguf

    def make(kind: str, pieces: list[tuple[str, int]], **roles: int) -> Path:
        path = tmp_path / f"{kind}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(128)
        writer.add_embedding_length(32)
        writer.add_block_count(1)
        writer.add_feed_forward_length(32)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model(kind)
        if kind == "rwkv":
            pieces = [*((f"\\x{i:02x}", NORMAL_TYPE) for i in range(256)), *pieces]
        else:
            pieces = [*pieces, *((f"<0x{i:02X}>", BYTE_TYPE) for i in range(256))]
        writer.add_token_list([text for text, _ in pieces])
        writer.add_token_types([token_type for _, token_type in pieces])
        writer.add_token_scores([0.0] * len(pieces))
        for role, token in roles.items():
            writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return make


def walked(vocabulary: Vocabulary) -> tuple[set[int], set[int], set[str]]:
    """Ask the engine for every token: ends of turns, control tokens, spellings."""
    lib, vocab, ids = vocabulary._lib, vocabulary._vocab, range(vocabulary.n_tokens)
    attributes = [int(lib.llama_vocab_get_attr(vocab, i)) for i in ids]
    texts = (vocabulary._spelling(i) for i in ids if attributes[i] & (UNKNOWN | CONTROL))
    return (
        {i for i in ids if lib.llama_vocab_is_eog(vocab, i)} - vocabulary._guessed(),
        {i for i in ids if attributes[i] & CONTROL},
        {text for text in texts if text},
    )


def check_as_walked(path: Path) -> tuple[set[int], set[int], set[str]]:
    """Hold a file's vocabulary against the walk, and return what that found."""
    with VocabOnly(path) as vocabulary:
        found, whole = vocabulary.describe(), walked(vocabulary)
        assert found.end_ids == whole[0]
        assert (found.special_ids, found.spellings) == whole[1:]
        return whole


def test_tiny_models_are_described_as_a_walk_describes_them(tiny_models: Path) -> None:
    """Every kind of memory there is; their vocabularies are small."""
    paths = sorted(tiny_models.glob("*.gguf"))
    assert len(paths) > 15
    for path in paths:
        assert all(check_as_walked(path))


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_models_are_described_as_a_walk_describes_them(
    name: str, request: pytest.FixtureRequest
) -> None:
    """262,144 tokens, of which 6,250 are control tokens, and 49,152 with 17."""
    _, special, _ = check_as_walked(request.getfixturevalue(f"{name}_gguf"))
    assert len(special) == {"smollm2": 17, "gemma3": 6250}[name]


def test_what_the_engine_makes_of_texts_counts(vocabulary_of: MakeVocabulary) -> None:
    """Texts that it takes for control tokens and ends, whatever the file says, and the reverse."""
    pieces = [
        ("<unk>", UNKNOWN_TYPE),
        ("<s>", CONTROL_TYPE),
        ("</s>", NORMAL_TYPE),
        ("<|im_end|>", NORMAL_TYPE),
        ("<|channel|>", CONTROL_TYPE),
        ("<tool>", USER_TYPE),
        ("<spare>", UNUSED_TYPE),
        ("own end", NORMAL_TYPE),
        *((f"word{i}", NORMAL_TYPE) for i in range(1500)),
        ("<late>", CONTROL_TYPE),
    ]
    ends, special, spellings = check_as_walked(
        vocabulary_of("llama", pieces, bos=1, eos=7, eot=2, unk=0)
    )
    assert ends == {2, 3, 7}
    assert special == {1, 2, 3, 1508}
    assert spellings == {"<unk>", "<s>", "</s>", "<|im_end|>", "<late>"}


@pytest.mark.parametrize("place", [0, 1, 511, 512, 513, 1023, 1024])
def test_a_blank_as_a_control_token_is_found_at_every_place(
    vocabulary_of: MakeVocabulary, place: int
) -> None:
    """Where text begins the engine leaves a first blank out, and that is all this token is."""
    pieces = [(f"word{i}", NORMAL_TYPE) for i in range(1100)]
    pieces[place] = (" ", CONTROL_TYPE)
    _, special, _ = check_as_walked(vocabulary_of("llama", pieces, bos=2, eos=3))
    assert special == {place}


def test_a_control_token_without_a_byte_is_found(vocabulary_of: MakeVocabulary) -> None:
    """RWKV reads texts as the insides of string literals, where a last backslash is nothing."""
    _, special, _ = check_as_walked(vocabulary_of("rwkv", [("\\", CONTROL_TYPE)]))
    assert special == {256}


@pytest.mark.parametrize("role", ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep", "bos"])
@pytest.mark.parametrize("token", [1, 2, 3, 600])
def test_whatever_token_has_a_role(vocabulary_of: MakeVocabulary, role: str, token: int) -> None:
    """Ordinary tokens, and those that the engine takes the control out of, are ends where named so."""
    pieces = [
        ("<s>", CONTROL_TYPE),
        ("plain", NORMAL_TYPE),
        ("<|message|>", CONTROL_TYPE),
        ("<tool>", USER_TYPE),
        *((f"word{i}", NORMAL_TYPE) for i in range(1100)),
    ]
    roles = {"bos": 0, "eos": 700, role: token}
    ends, _, _ = check_as_walked(vocabulary_of("llama", pieces, **roles))
    assert (token in ends) == (role != "bos")


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_is_described_as_a_walk_describes_it(
    vocabulary_of: MakeVocabulary, seed: int
) -> None:
    """Types and roles by chance, and texts among which the engine knows some."""
    rng = random.Random(seed)
    texts = [*KNOWN_TEXTS, *(f"word{i}" for i in range(rng.randrange(2000)))]
    rng.shuffle(texts)
    odd = rng.choice([0.0, 0.01, 0.5])
    pieces = [(text, rng.randrange(1, 6) if rng.random() < odd else 1) for text in texts]
    named = rng.sample(["bos", "eos", "eot", "eom", "fim_pad", "fim_rep", "unk"], rng.randrange(8))
    roles = {role: rng.randrange(len(texts) + 300) for role in named}
    check_as_walked(vocabulary_of("llama", pieces, **roles))
