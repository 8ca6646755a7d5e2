"""The samples' generator: it writes where it lies only when it is called for that."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GENERATOR = Path(__file__).resolve().parent / "gen_inputs.py"


@pytest.mark.parametrize(
    ("arguments", "is_wrong"),
    [(["--help"], False), (["-h"], False), (["mutate"], True), (["serve", "a", "b"], True)],
)
def test_what_it_does_not_know_writes_nothing(
    tmp_path: Path, arguments: list[str], is_wrong: bool
) -> None:
    """Its usage is printed, to stderr and with a failure where the arguments are wrong."""
    copy = Path(shutil.copy(GENERATOR, tmp_path))
    ended = subprocess.run(
        [sys.executable, "-S", str(copy), *arguments], capture_output=True, text=True, check=False
    )
    assert bool(ended.returncode) is is_wrong
    assert "gen_inputs.py mutate F OUT" in (ended.stderr if is_wrong else ended.stdout)
    assert list(tmp_path.iterdir()) == [copy]
