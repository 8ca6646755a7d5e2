"""`edgellm snapshots why` over a tiny model: seeded causes, and the class that each of them gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from edgellm.cli.app import main
from edgellm.core import Message, Tier
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.paths import snapshots_dir
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.why import Doctor
from edgellm.store.format.codec import pack_state
from edgellm.store.snapshots import Saved, SnapshotStore

RULES = "\n".join(f"Rule {n}: answer in one sentence, and name the source." for n in range(9))
CHATML = (
    "{% if tools %}{{ '<|im_start|>tools\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WEATHER, CLOCK = (
    {"type": "function", "function": {"name": name, "description": f"Tells {what}."}}
    for name, what in (("get_weather", "the weather of a city"), ("get_time", "the time there"))
)


@dataclass(frozen=True)
class Asked:
    """What a run is given; `fields` are what a later engine would put into the fingerprint."""

    system: str = RULES
    template: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    settings: EngineSettings = field(default_factory=EngineSettings)
    tier: Tier = Tier.EXACT
    fields: Mapping[str, str] = field(default_factory=dict)


def seed(model: Path, asked: Asked) -> Path:
    """Store the prefix as a run would have; return the file."""
    engine = LlamaCppEngine(model, asked.settings)
    try:
        engine.reserve(2048)
        store = SnapshotStore(snapshots_dir())
        doctor = Doctor(engine, store, SessionOptions(chat_template=asked.template))
        prompt = doctor.prompt([Message("system", asked.system)], asked.tools)
        prefix = prompt.tokens[: prompt.n_prefix]
        engine.decode(prefix)
        fingerprint = engine.fingerprint()
        hard = {**dict(fingerprint.hard), **asked.fields}
        fingerprint = replace(fingerprint, hard=tuple(sorted(hard.items())))
        saved = store.save(fingerprint, prefix, pack_state(engine.capture(), asked.tier))
        assert isinstance(saved, Saved), saved
        return saved.path
    finally:
        engine.close()


@pytest.fixture
def why(
    tmp_path: Path, tiny_models: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Give a function that runs the command for what a run is given."""

    def run(asked: Asked, *flags: object, model: Path | None = None) -> tuple[int, dict[str, Any]]:
        (tmp_path / "system.txt").write_text(asked.system)
        options: list[object] = ["--system-file", tmp_path / "system.txt", *flags]
        if asked.template is not None:
            (tmp_path / "template.jinja").write_text(asked.template)
            options += ["--chat-template", tmp_path / "template.jinja"]
        if asked.tools:
            (tmp_path / "tools.json").write_text(json.dumps(asked.tools))
            options += ["--tools", tmp_path / "tools.json"]
        capsys.readouterr()
        model = model or tiny_models / "tiny-llama.gguf"
        code = main(["snapshots", "why", str(model), "--json", *map(str, options)])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def llama(tiny_models: Path) -> Path:
    """Give a tiny model with dense memory."""
    return tiny_models / "tiny-llama.gguf"


def test_a_stored_prompt_is_a_hit(llama: Path, why: Any):
    """The command finds what a run has stored, and exits 0."""
    path = seed(llama, Asked())
    code, found = why(Asked())
    assert (0, "hit", "") == (code, found["code"], found["cause"])
    assert (str(path), found["n_tokens"]) == (found["path"], found["n_usable"])


LATER = {
    "rope": ({"rope": "yarn, factor 2"}, "rope"),
    "build": ({"engine": "llama.cpp 0.3.35 ggml 0000000"}, "build"),
    "lora": ({"adapters": "00ff:1"}, "lora"),
}
TEXTS = {
    "date": (Asked(f"Today is 2026-11-28.\n{RULES}"), Asked(f"Today is 2026-11-29.\n{RULES}"), "date"),
    "template date": (
        Asked(template="Today is 28 Nov 2026. " + CHATML),
        Asked(template="Today is 29 Nov 2026. " + CHATML),
        "date",
    ),
    "id": (Asked(f"{RULES}\nRun 7f3a9b02."), Asked(f"{RULES}\nRun 7f3a9c55."), "id"),
    "bos": (Asked(template="{{ bos_token }}" + CHATML), Asked(template=CHATML), "bos"),
    "template": (
        Asked(template=CHATML.replace("m.role", "'the ' + m.role")),
        Asked(template=CHATML),
        "template",
    ),
    "tool order": (
        Asked(template=CHATML, tools=(WEATHER, CLOCK)),
        Asked(template=CHATML, tools=(CLOCK, WEATHER)),
        "tool_order",
    ),
    "tools": (
        Asked(template=CHATML, tools=(WEATHER,)),
        Asked(template=CHATML, tools=(WEATHER, CLOCK)),
        "tools",
    ),
    "text": (Asked(), Asked(RULES.replace("Rule 4: answer", "Rule 4: write")), "text"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_prompts_that_differ(llama: Path, why: Any, name: str):
    """The class of what differs in the text, and the first token and place of it."""
    stored, now, cause = TEXTS[name]
    seed(llama, stored)
    code, found = why(now)
    assert (1, "not_stored", cause) == (code, found["code"], found["cause"])
    difference = found["difference"]
    assert difference["stored_id"] != difference["now_id"]
    assert difference["stored_text"] != difference["now_text"]
    if name == "text":
        assert (5, 9) == (difference["line"], difference["column"])


@pytest.mark.parametrize("name", LATER)
def test_fields_that_differ(llama: Path, why: Any, name: str):
    """Each field of the fingerprint names its class, with what is stored and what is now."""
    fields, cause = LATER[name]
    seed(llama, Asked(fields=fields))
    code, found = why(Asked())
    assert (1, "not_stored", cause) == (code, found["code"], found["cause"])
    assert fields == {change["name"]: change["stored"] for change in found["changes"]}


@pytest.mark.parametrize(
    ("flags", "cause"),
    [(["--kv-type", "q8_0"], "kv_type"), (["--flash-attn", "off"], "flash_attention")],
)
def test_settings_that_differ(llama: Path, why: Any, flags: list[str], cause: str):
    """A flag of the engine that changes the key is named."""
    seed(llama, Asked())
    code, found = why(Asked(), *flags)
    assert (1, "not_stored", cause) == (code, found["code"], found["cause"])


def test_another_adapter(llama: Path, why: Any, lora_files: Any, tmp_path: Path):
    """An adapter that is loaded now, and was not."""
    seed(llama, Asked())
    lora = lora_files.adapter(llama).write(tmp_path / "lora.gguf")
    code, found = why(Asked(), "--lora", lora)
    assert (1, "lora") == (code, found["cause"])


def test_another_model_file(llama: Path, why: Any, tmp_path: Path):
    """One byte of the weights makes another model."""
    seed(llama, Asked())
    content = bytearray(llama.read_bytes())
    content[-5] ^= 1
    (tmp_path / "other.gguf").write_bytes(content)
    code, found = why(Asked(), model=tmp_path / "other.gguf")
    assert (1, "model_file") == (code, found["cause"])
    assert ["model"] == [change["name"] for change in found["changes"]]


def test_a_coarser_tier(llama: Path, why: Any):
    """A rounded file where the bits are asked for."""
    seed(llama, Asked(tier=Tier.Q4))
    code, found = why(Asked(), "--snapshot", "exact")
    assert (1, "too_coarse", "tier") == (code, found["code"], found["cause"])
    assert 0 == why(Asked(), "--snapshot", "q4")[0]


def test_a_damaged_file(llama: Path, why: Any):
    """A flipped bit in the rows."""
    path = seed(llama, Asked())
    content = bytearray(path.read_bytes())
    content[-1000] ^= 16
    path.write_bytes(content)
    code, found = why(Asked())
    assert (1, "corrupt", "damaged") == (code, found["code"], found["cause"])


def test_nothing_like_it(llama: Path, why: Any):
    """An empty store, and one that holds something else."""
    assert "never_stored" == why(Asked())[1]["cause"]
    seed(llama, Asked("Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich. " * 9))
    code, found = why(Asked())
    assert (1, "not_stored", "never_stored") == (code, found["code"], found["cause"])


def test_too_short_to_keep(llama: Path, why: Any):
    """A prompt that no run would keep."""
    assert ["too_short", "too_short"] == [
        why(Asked("Be kind."))[1][name] for name in ("code", "cause")
    ]


def test_what_people_see(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Without --json the place, both texts and one line of advice; nothing of it is logged."""
    seed(llama, Asked())
    text = tmp_path / "system.txt"
    text.write_text(RULES.replace("Rule 4: answer", "Rule 4: write"))
    assert 1 == main(["snapshots", "why", str(llama), "--system-file", str(text)])
    shown = capsys.readouterr()
    for part in (
        "line 5, column 9 of the system prompt",
        "Rule 4: answer",
        "Rule 4: write",
        "fix:",
    ):
        assert part in shown.out
    assert "Rule" not in shown.err


def test_other_settings_are_used_where_loss_is_allowed(llama: Path, why: Any):
    """A run that may round lays a snapshot out anew, and the command says so."""
    seed(llama, Asked())
    code, found = why(Asked(), "--flash-attn", "off", "--snapshot", "q8")
    assert (0, "converted", "") == (code, found["code"], found["cause"])
    assert ["flash_attention"] == [change["name"] for change in found["changes"]]
