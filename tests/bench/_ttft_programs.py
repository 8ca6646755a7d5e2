"""The three programs that `ttft.py` times: each loads a model, answers one question and exits.

Run as `python _ttft_programs.py NAME` in a process of its own, with a `Task` as JSON on stdin; one
`Answer` as JSON is the last line on stdout. A program with an empty folder starts cold, and leaves
there what lets the next one start warm. Nothing is warmed up before the clock starts.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Task:
    """What to ask, and the settings that are the same for all three.

    Attributes:
        model: a GGUF file with a chat template.
        folder: where this program keeps its snapshots, nobody else's.
        system: the system prompt.
        question: the user's text.
        n_threads: CPU threads, for prompts and for answers.
        n_ctx: context in tokens.
        n_batch: tokens in one decode call.
        answer_tokens: length of the greedy answer.
    """

    model: str
    folder: str
    system: str
    question: str
    n_threads: int
    n_ctx: int = 4096
    n_batch: int = 512
    answer_tokens: int = 16


@dataclass(slots=True)
class Answer:
    """What one process did; times are of the system's monotonic clock, in seconds.

    Attributes:
        asked_s: when the request began, the model being loaded.
        first_s: when the first piece of the answer was there.
        pieces: the answer's texts, one a token where the program tells.
        prompt_tokens: length of the prompt.
        reused_tokens: how many of them were not decoded in this process.
        prefix_tokens: where the user's part begins, if the program tells.
        restore_ms: time to look up, verify and restore, if the program tells.
        decode_ms: time to decode what was not reused, if the program tells.
    """

    asked_s: float = 0.0
    first_s: float = 0.0
    pieces: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefix_tokens: int = 0
    restore_ms: float = 0.0
    decode_ms: float = 0.0

    def ask(self) -> None:
        """Start the clock."""
        self.asked_s = time.monotonic()

    def add(self, piece: str) -> None:
        """Take a piece of the answer; the first one stops the clock."""
        self.first_s = self.first_s or time.monotonic()
        self.pieces.append(piece)


def edgellm(task: Task, snapshot: str = "auto") -> Answer:
    """Answer through the Python API. The context is made inside the first request's time."""
    os.environ["EDGELLM_HOME"] = task.folder
    from edgellm import Done, Failure, Sampling, Token, load

    answer = Answer()
    with load(
        task.model,
        system=task.system,
        n_ctx=task.n_ctx,
        n_batch=task.n_batch,
        n_threads=task.n_threads,
        n_gpu_layers=0,
        flash_attention="on",
        snapshot=snapshot,
    ) as llm:
        answer.ask()
        greedy = Sampling(temperature=0)
        for event in llm.stream(task.question, max_tokens=task.answer_tokens, sampling=greedy):
            if isinstance(event, Token):
                answer.add(event.text)
            elif isinstance(event, Failure):
                raise SystemExit(event.message)
            elif isinstance(event, Done):
                answer.prompt_tokens = event.usage.prompt_tokens
                answer.reused_tokens = event.usage.reused_tokens
                answer.restore_ms = event.timings.restore_ms
                answer.decode_ms = event.timings.prefill_ms
    return answer


def edgellm_off(task: Task) -> Answer:
    """Answer with snapshots off."""
    return edgellm(task, "off")


def disk_cache(task: Task) -> Answer:
    """Answer through llama-cpp-python's chat API with its own cache on disk, as it is meant."""
    from llama_cpp import Llama
    from llama_cpp.llama_cache import LlamaDiskCache

    answer = Answer()

    class Counting(Llama):
        """Notes what the first decode of the request found in memory."""

        def load_state(self, state: Any) -> None:
            """Take a state out of the cache."""
            super().load_state(state)
            answer.restore_ms = (time.monotonic() - answer.asked_s) * 1000

        def eval(self, tokens: Any) -> None:
            """Decode tokens."""
            if not answer.prompt_tokens:
                answer.reused_tokens = self.n_tokens
                answer.prompt_tokens = self.n_tokens + len(tokens)
            super().eval(tokens)

    llm = Counting(
        task.model,
        n_ctx=task.n_ctx,
        n_batch=task.n_batch,
        n_threads=task.n_threads,
        n_threads_batch=task.n_threads,
        flash_attn=True,
        verbose=False,
    )
    llm.set_cache(LlamaDiskCache(task.folder))
    messages: Any = [
        {"role": "system", "content": task.system},
        {"role": "user", "content": task.question},
    ]
    answer.ask()
    chunks: Any = llm.create_chat_completion(
        messages, max_tokens=task.answer_tokens, temperature=0, stream=True
    )
    for chunk in chunks:
        if piece := chunk["choices"][0]["delta"].get("content"):
            answer.add(piece)
    llm.close()
    return answer


def sequence_file(task: Task) -> Answer:
    """Answer with the C functions alone and the state of the prefix in one file.

    It asks neither whose file it is nor whether it is whole: it compares tokens, and no more. Cold,
    it saves where the prefix ends, before it decodes the rest, so its cold time has the writing in.
    """
    plain = _Plain(task)
    answer = Answer()
    answer.ask()
    prompt = plain.tokens(task.system, task.question)
    n_prefix = plain.prefix(prompt, plain.tokens(task.system, "0"))
    path = Path(task.folder) / "prefix.state"
    if path.exists():
        started_s = time.monotonic()
        answer.reused_tokens = plain.load(path, prompt[:n_prefix])
        answer.restore_ms = (time.monotonic() - started_s) * 1000
    else:
        plain.decode(prompt[:n_prefix])
        plain.save(path, prompt[:n_prefix])
    plain.decode(prompt[n_prefix:])
    for _ in range(task.answer_tokens):
        token = plain.best()
        if plain.lib.llama_vocab_is_eog(plain.vocab, token):
            break
        answer.add(plain.piece(token))
        plain.decode([token])
    answer.prompt_tokens, answer.prefix_tokens = len(prompt), n_prefix
    return answer


class _Plain:
    """The few C functions that a program of one sequence needs."""

    def __init__(self, task: Task) -> None:
        from llama_cpp import llama_cpp as lib

        self.lib, self.n_batch = lib, task.n_batch
        self._quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        of_model = lib.llama_model_default_params()
        of_model.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(os.fsencode(task.model), of_model)
        self.vocab = lib.llama_model_get_vocab(self.model)
        params = lib.llama_context_default_params()
        params.n_ctx = task.n_ctx
        params.n_batch = params.n_ubatch = task.n_batch
        params.n_threads = params.n_threads_batch = task.n_threads
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.ctx = lib.llama_init_from_model(self.model, params)

    def tokens(self, system: str, question: str) -> list[int]:
        """Render llama.cpp's own form of the model's template and split it."""
        chat = (self.lib.llama_chat_message * 2)(
            self.lib.llama_chat_message(b"system", system.encode()),
            self.lib.llama_chat_message(b"user", question.encode()),
        )
        template = self.lib.llama_model_chat_template(self.model, None)
        text = ctypes.create_string_buffer(2 * len(system) + 4096)
        n = self.lib.llama_chat_apply_template(template, chat, 2, True, text, len(text))
        if not 0 <= n <= len(text):
            raise RuntimeError(f"llama.cpp gave {n} for the model's chat template")
        ids = (ctypes.c_int32 * n)()
        n = self.lib.llama_tokenize(self.vocab, text.raw[:n], n, ids, n, True, True)
        return list(ids[:n])

    def prefix(self, prompt: list[int], other: list[int]) -> int:
        """Return where two prompts part, cut back to behind the last control token."""
        same = next(i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b)
        while same and not self.lib.llama_vocab_is_control(self.vocab, prompt[same - 1]):
            same -= 1
        return same

    def decode(self, tokens: list[int]) -> None:
        """Append tokens to the memory."""
        for at in range(0, len(tokens), self.n_batch):
            chunk = tokens[at : at + self.n_batch]
            ids = (ctypes.c_int32 * len(chunk))(*chunk)
            batch = self.lib.llama_batch_get_one(ids, len(chunk))
            if code := self.lib.llama_decode(self.ctx, batch):
                raise RuntimeError(f"llama_decode gave {code}")

    def best(self) -> int:
        """Return the most likely next token."""
        logits = self.lib.llama_get_logits_ith(self.ctx, -1)
        shape = (self.lib.llama_vocab_n_tokens(self.vocab),)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape)))

    def piece(self, token: int) -> str:
        """Return a token's text."""
        text = ctypes.create_string_buffer(128)
        n = self.lib.llama_token_to_piece(self.vocab, token, text, len(text), 0, False)
        return text.raw[: max(n, 0)].decode("utf-8", "replace")

    def save(self, path: Path, tokens: list[int]) -> None:
        """Write the memory to a file."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        name = os.fsencode(path)
        if not self.lib.llama_state_seq_save_file(self.ctx, name, 0, ids, len(ids)):
            raise RuntimeError("llama_state_seq_save_file failed")

    def load(self, path: Path, tokens: list[int]) -> int:
        """Read the memory from a file; return for how many tokens, which are those given."""
        ids, n = (ctypes.c_int32 * len(tokens))(), ctypes.c_size_t()
        name, length = os.fsencode(path), ctypes.byref(n)
        taken = self.lib.llama_state_seq_load_file(self.ctx, name, 0, ids, len(ids), length)
        if not taken or list(ids[: n.value]) != tokens:
            raise RuntimeError("llama_state_seq_load_file failed")
        return n.value


PROGRAMS = {"edgellm": edgellm, "LlamaDiskCache": disk_cache, "seq file": sequence_file}
MORE_PROGRAMS = {"edgellm off": edgellm_off}

if __name__ == "__main__":
    print(json.dumps(asdict((PROGRAMS | MORE_PROGRAMS)[sys.argv[1]](Task(**json.load(sys.stdin))))))
