"""Programs that end with a session open: at once, without a word, and with nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

from edgellm.runtime.books.audit import AuditLog

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(os.name == "nt", reason="processes of POSIX"),
]
HEAD = """
import contextlib, os, sys, time
import edgellm
llm = edgellm.load(os.environ["MODEL"])
answer = llm.stream("Tell a long story.", max_tokens=900)
next(answer), next(answer)
"""
ENDS = {
    "an answer is open": "",
    "an answer is open, without a worker": """
        answer.close(), llm.close()
        llm = edgellm.load(os.environ["MODEL"], isolation="none")
        answer = llm.stream("Tell a long story.", max_tokens=900)
        next(answer), next(answer)
        """,
    "it is closed late": """
        def held():
            with llm:
                yield
        holder = held()
        next(holder)
        """,
    "it is asked late": """
        class Late:
            def __init__(self, llm):
                self.llm = llm
            def __del__(self):
                try:
                    self.llm.generate("Hi", max_tokens=2)
                except Exception as err:
                    os.write(1, f"{type(err).__name__}\\n".encode())
        answer.close()
        late = Late(llm)
        sys.modules["held"] = late  # until the very end
        """,
}
"""What a program does with its session before it ends."""


@pytest.mark.parametrize("what", ENDS)
def test_a_program_ends_at_once(smollm2_gguf, edgellm_home, tmp_path, what):
    """However a session is held, its program ends within two seconds, with stderr empty."""
    file = tmp_path / "program.py"
    file.write_text(
        HEAD + textwrap.dedent(ENDS[what]) + "\nprint(f'end {time.time()}', flush=True)\n"
    )
    environ = {**os.environ, "MODEL": str(smollm2_gguf)}
    ran = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, env=environ, timeout=60, check=False
    )
    took_s = time.time() - float(ran.stdout.split()[1])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert took_s < 2
    sessions = 2 if "without" in what else 1
    assert [record.finish for _, record in AuditLog(edgellm_home).show()] == ["given_up"] * sessions
    if "asked" in what:
        assert ran.stdout.split()[2:] == ["EngineFailed"]
