"""Makes `fuzzing`, the folder beside this file, importable: importlib mode has no packages here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
