"""Print what a warm start saved: two files of `edgellm run --json` lines, cold and warm.

    python examples/compare_runs.py cold.jsonl warm.jsonl

Exits with 1 when the answers differ or the warm run read the prefix again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import edgellm
from edgellm.core import Done, event_from_wire


def last_event(path: Path) -> Done:
    """Return the `done` line of a run.

    Raises:
        EdgeLLMError: a line is no event.
        SystemExit: the run did not end in order.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    event = event_from_wire(json.loads(lines[-1])) if lines else None
    if not isinstance(event, Done):
        raise SystemExit(f"{path}: the run did not end with a `done` line")
    return event


def report(cold: Done, warm: Done) -> str:
    """Return the table, one `label: value` a line."""
    ratio = warm.timings.ttft_ms / cold.timings.ttft_ms
    rows = [
        ("answer", warm.text.strip()),
        (
            "prompt",
            f"{warm.usage.prompt_tokens} tokens, {warm.usage.reused_tokens} from the snapshot",
        ),
        ("cold TTFT", f"{cold.timings.ttft_ms:.0f} ms ({cold.snapshot.reason})"),
        ("warm TTFT", f"{warm.timings.ttft_ms:.0f} ms ({warm.snapshot.reason})"),
        ("warm / cold", f"{ratio:.3f}"),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label + ':':{width + 1}} {value}" for label, value in rows)


def main(arguments: list[str]) -> int:
    """Compare two runs; return the exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: compare_runs.py COLD.jsonl WARM.jsonl\n")
        return 2
    try:
        cold, warm = (last_event(Path(argument)) for argument in arguments)
    except (edgellm.EdgeLLMError, OSError, json.JSONDecodeError) as err:
        sys.stderr.write(f"compare_runs: {err}\n")
        return 2
    print(report(cold, warm))
    if cold.text != warm.text:
        sys.stderr.write("compare_runs: the answers differ\n")
        return 1
    if not warm.usage.reused_tokens:
        sys.stderr.write(f"compare_runs: nothing was reused: {warm.snapshot.reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
