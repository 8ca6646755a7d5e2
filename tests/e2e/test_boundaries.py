"""Where prompts are cut, on real vocabularies: the same for every question and every next document.

Two hundred user texts, six chat templates, two vocabularies: byte-level BPE with a split rule
(SmolLM2) and SentencePiece-like merges without one (gemma 3). A seeded part by default, all of them
under `full`.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

import edgellm
from edgellm.core import Message, Sampling
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.prompt.boundary import Boundary, stable_prefix
from edgellm.prompt.documents import system_message
from edgellm.prompt.encoding import PromptEncoder
from edgellm.prompt.provenance import PromptWriter
from edgellm.prompt.spellings import Spellings
from edgellm.prompt.template import make_prompter

ROOT = Path(__file__).resolve().parents[1]
NOW = datetime(2026, 5, 17, 9, 30, 12)  # noqa: DTZ001
N_TEXTS, N_SEEDED = 200, 14
MAX_CHARS = 2000
RULES = "You are a helpful assistant. Answer in short sentences, and name your sources.\n" * 4
GUIDE = (
    "# Guide\n\n" + "Write code that others can read: small files, plain names (no jokes).\n" * 6
)
NOTES = (
    "# Notes\n\n"
    + "- The user may write in any language; 한국어, emoji \U0001f642, digits 1234.\n" * 5
)
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Reads {name}. " * 6,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("file", "mail")
)
TURN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + CONTENT + '<|im_end|>\n' }}{% endfor %}"
ASKS = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
INTO_USER = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
)
TEMPLATES = {
    "chatml": TURN.replace("CONTENT", "m.content") + ASKS,
    "trimmed": (
        "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_end|>\n\n' + "
        "m.content | trim + '<|im_end|>' }}{% endfor %}" + ASKS
    ),
    "gemma": (
        "{{ bos_token }}"
        + INTO_USER
        + "{% for m in rest %}{{ '<start_of_turn>' + ('model' if m.role"
        " == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}"
        "{{ m.content | trim }}{{ '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}"
        + INTO_USER
        + "{% for m in rest %}{% if m.role == 'user' %}{{ '[INST] ' + "
        "(first if loop.first else '') + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + "
        "eos_token }}{% endif %}{% endfor %}"
    ),
    "hermes": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% if loop.first and tools %}{{ '\n\n# Tools\n<tools>' }}{% for t in tools %}{{ '\n' }}"
        "{{ t | tojson }}{% endfor %}{{ '\n</tools>\nCall a function by its name, in JSON.' }}"
        "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}" + ASKS
    ),
    "thinking": (
        TURN.replace("CONTENT", "m.content.replace('/no_think', '').split('</think>')[-1].rstrip()")
        + ASKS
    ),
}
STARTS = (
    *(
        "",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "1",
        " 12",
        "a",
        "The",
        " the",
        "\u00e9",
        "\U0001f44b",
    ),
    *("\uac12", "\u0301", "\u200d", "'s", '"', ")", "(", "]]", "...", "<", "<|im_end|>", "#", "_"),
    *("\x00", "\u00a0", "\u3000", "\u0663", "\u00bd", "\ufb01", "`", "99999", "!", "[/INST]", "-"),
)


@dataclass(frozen=True, slots=True)
class Model:
    """A real vocabulary, and prompts in its tokens."""

    engine: LlamaCppEngine

    def find(
        self, source: str, system: Message, user: str, tools: tuple[dict[str, object], ...] = ()
    ) -> Boundary:
        """Find the cuts with nothing known of any prompt before."""
        vocab = self.engine.vocab()
        spellings = Spellings(vocab.spellings)
        prompter = make_prompter(source, bos_text=vocab.bos_text, eos_text=vocab.eos_text)
        encode = PromptEncoder(
            self.engine.tokenize,
            spellings=spellings,
            control_ids=vocab.special_ids,
            bos_id=vocab.bos_id if vocab.add_bos else None,
            bos_text=vocab.bos_text,
        )
        write = PromptWriter(prompter, spellings).write
        messages = [system, Message("user", user)]
        return stable_prefix(write, messages, encode, vocab.special_ids, NOW, tools)


@pytest.fixture(scope="module")
def field_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the field's prompts, written by their generator."""
    folder = tmp_path_factory.mktemp("field")
    shutil.copy(ROOT / "field" / "gen_inputs.py", folder)
    subprocess.run([sys.executable, "gen_inputs.py"], cwd=folder, check=True, capture_output=True)
    return folder / "prompts"


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest) -> Model:
    """Each real vocabulary; no context is made."""
    path = request.getfixturevalue(f"{request.param}_gguf")
    with closing(LlamaCppEngine(path, EngineSettings())) as engine:
        yield Model(engine)


def user_texts(field_prompts: Path) -> list[str]:
    """Texts that tokenizers treat specially at their start, the field's, and random ones."""
    texts = [start + rest for start in STARTS for rest in (" more", "9 lives")]
    for path in sorted(field_prompts.glob("*.txt")):
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            continue
        texts.append(text[:MAX_CHARS])
        if path.name == "20_boundary_pairs.txt":
            texts += text.split("\n")
    rng = random.Random(13)
    ranges = ((32, 127), (32, 0x300), (0x300, 0xD7FF), (0x10000, 0x1FFFF), (10, 11), (32, 33))
    while len(texts) < N_TEXTS:
        letters = (chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 6)))
        texts.append("".join(letters))
    return texts[:N_TEXTS]


def mismatched(model: Model, source: str, texts: list[str]) -> tuple[set[tuple[int, ...]], int]:
    """Return all cuts that were found, and how many tokens before them differ between texts."""
    system = system_message(RULES, [GUIDE, NOTES])
    assert system is not None
    found = [model.find(source, system, text, TOOLS) for text in texts]
    first = found[0]
    n_differ = sum(
        a != b
        for one in found
        for a, b in zip(one.tokens[: one.n_prefix], first.tokens[: first.n_prefix], strict=False)
    )
    return {one.cuts for one in found}, n_differ


@pytest.mark.model
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_question_is_cut_alike(model: Model, field_prompts: Path, template: str) -> None:
    """A seeded part of the two hundred texts: one set of cuts, no other token before them."""
    texts = random.Random(template).sample(user_texts(field_prompts), N_SEEDED)
    cuts, n_differ = mismatched(model, TEMPLATES[template], texts)
    assert (1, 0) == (len(cuts), n_differ)
    # Behind the rules, the guide and the notes; where there are tools, behind these too.
    assert len(next(iter(cuts))) == (4 if template == "hermes" else 3)


@pytest.mark.model
@pytest.mark.full
@pytest.mark.parametrize("template", TEMPLATES)
def test_two_hundred_questions_are_cut_alike(
    model: Model, field_prompts: Path, template: str
) -> None:
    """All of them."""
    cuts, n_differ = mismatched(model, TEMPLATES[template], user_texts(field_prompts))
    assert (1, 0) == (len(cuts), n_differ)


@pytest.mark.model
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_document_is_cut_alike_before_any_other(model: Model, template: str) -> None:
    """What changes behind it, or is not there, leaves its cut and its tokens."""
    source = TEMPLATES[template]
    whole = model.find(source, system_message(RULES, [GUIDE, NOTES]), "hi")
    for other in ("", "x", "1. First", "\n\n\n---", ") yes", "\u0301", "```py\n", NOTES[::-1]):
        found = model.find(source, system_message(RULES, [GUIDE, other]), "hello")
        assert found.cuts[:2] == whole.cuts[:2]
        assert found.tokens[: found.cuts[1]] == whole.tokens[: whole.cuts[1]]


@pytest.mark.model
def test_pairs_that_merge_at_the_seam_are_cut_before_it(model: Model, field_prompts: Path) -> None:
    """Wherever a line that tokenizers glue together is parted, the first half's cut is its own."""
    lines = (field_prompts / "20_boundary_pairs.txt").read_text(encoding="utf-8")
    rng = random.Random(5)
    halves = [
        (line[:k], line[k:]) for line in [lines, *lines.split("\n")] for k in range(1, len(line))
    ]
    for before, behind in rng.sample(halves, 24):
        head = RULES + before
        marks = (len(head),) if before.strip() else ()
        glued = model.find(TEMPLATES["chatml"], Message("system", head + behind, marks), "hi")
        other = model.find(TEMPLATES["chatml"], Message("system", head + "7 up", marks), "hi")
        assert glued.tokens[: glued.cuts[0]] == other.tokens[: other.cuts[0]] or not marks
        assert not marks or glued.cuts[0] == other.cuts[0]


@pytest.mark.model
def test_a_changed_document_costs_only_itself(smollm2_gguf: Path, edgellm_home: Path) -> None:
    """The next process takes up the state behind the document before it, and answers as cold."""
    greedy = Sampling(temperature=0)

    def answer(*documents: str, snapshot: str = "exact") -> edgellm.Done:
        with edgellm.load(
            smollm2_gguf, system=RULES, documents=documents, snapshot=snapshot
        ) as llm:
            return llm.generate("What is asked of you?", max_tokens=8, sampling=greedy)

    other = "# Other notes\n\nSay nothing. " * 6
    first = answer(GUIDE, NOTES)
    changed, cold = answer(GUIDE, other), answer(GUIDE, other, snapshot="off")
    assert 0 == first.usage.reused_tokens
    assert changed.text == cold.text
    assert changed.usage.reused_tokens > len(RULES + GUIDE) / 8
    assert changed.usage.reused_tokens < cold.usage.prompt_tokens - 32
    assert list(edgellm_home.rglob("*.ekv"))
