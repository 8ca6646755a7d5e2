"""Assembling: from a path and options to a supervisor that is open."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import TYPE_CHECKING

from edgellm.config import allowed_mode
from edgellm.core import ModelInfo
from edgellm.errors import ModelNotFound, ModelUnsupported
from edgellm.paths import home_dir
from edgellm.policy.bars import OPEN_MODES
from edgellm.runtime.supervising.choosing import Chooser
from edgellm.runtime.supervising.place import Place
from edgellm.runtime.supervising.preflight import read_plan
from edgellm.runtime.supervising.recording import Recorder
from edgellm.runtime.supervising.resting import Resting
from edgellm.runtime.supervising.session import Supervisor

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.runtime.session import SessionOptions


def open_supervisor(path: Path, options: SessionOptions) -> Supervisor:
    """Open a model in a worker, or a session without one where an endpoint may be asked instead.

    Raises:
        EdgeLLMError: as `runtime.local.open_session`; also `OutOfMemory` and `WorkerDied` where its
            process ends, and `NoRoute`.
    """
    options = dataclasses.replace(options, mode=allowed_mode(options.mode))
    home, there = home_dir(), None
    cloud = options.cloud if options.mode in OPEN_MODES else None
    model, place = _place(path, options, has_other_way=cloud is not None)
    resting = Resting(place, home, insists=options.force)
    recorder = Recorder(options, model.name, resting, home)
    if cloud is not None:  # most often there is none, and the worker waits for its orders
        from edgellm.runtime.supervising.purse import Purse
        from edgellm.runtime.supervising.there import There

        purse = Purse(cloud.endpoint, cloud.budget, options.app, home)
        there = There(cloud, purse, recorder)
    supervisor = Supervisor(
        model,
        options,
        place,
        Chooser(options, place, resting, there),
        recorder,
        there,
    )
    if there is None and options.mode in OPEN_MODES:
        supervisor.note(f"mode {options.mode.value}: no endpoint is set up, answers stay local")
    with ExitStack() as failed:  # or interrupted: nobody holds what is being loaded
        failed.callback(place.end, at_once=True)
        supervisor.open()
        failed.pop_all()
    return supervisor


def _place(path: Path, options: SessionOptions, *, has_other_way: bool) -> tuple[ModelInfo, Place]:
    """Return a model and its place; of a file that is not there, an empty one beside an endpoint."""
    try:
        model, plan = read_plan(path, options)
    except (ModelNotFound, ModelUnsupported) as err:
        if not has_other_way:
            raise
        place = Place(path, options, None)
        place.absent = err
        return ModelInfo(str(path), "unknown", path.stem, 0, 0, 0, 0, 0, 0, 0, 0, {}), place
    return model, Place(path, options, plan)
