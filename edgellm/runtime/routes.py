"""Which routes a session may take: what its caller says, then `config.toml`, capped by the lock.

Both doors, the command line and `edgellm.load`, come through here, so that they cannot differ. No
variable of the environment opens a route: `EDGELLM_OFFLINE` and the administrator's lock close some.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from edgellm.config import KEYS, allowed_mode, read_config
from edgellm.config.keys import checked
from edgellm.errors import UsageError
from edgellm.policy.bars import OPEN_MODES
from edgellm.routing import Endpoint, origin_of
from edgellm.runtime.api_key import api_key
from edgellm.runtime.session import CloudOptions

if TYPE_CHECKING:
    from edgellm.config import Config
    from edgellm.core import Mode
    from edgellm.routing import Budget, OnFailure
    from edgellm.runtime.session import Isolation, SessionOptions

KeyGiven = str | Callable[[], "str | None"] | None
_LOG: Final = logging.getLogger(__name__)
_MAX_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class RouteWishes:
    """What a flag or an argument says; None leaves it to `config.toml`.

    Attributes:
        mode: which routes requests may take.
        endpoint: the server that may be asked, or its URL.
        endpoint_model: what it calls the model.
        budget: the most to spend there; limits that it leaves open are the file's.
        api_key: what opens the endpoint, or a function that returns it.
        isolation: where the engine runs.
        on_failure: what becomes of an answer whose beginning was shown when its route fails.
        deadline_s: how long the first token may take.
        force: try what does not fit, or rests.
        app: the program's name, under which consent is given and spending is booked.
    """

    mode: Mode | None = None
    endpoint: Endpoint | str | None = None
    endpoint_model: str | None = None
    budget: Budget | None = None
    api_key: KeyGiven = field(default=None, repr=False)
    isolation: Isolation | None = None
    on_failure: OnFailure | None = None
    deadline_s: float | None = None
    force: bool = False
    app: str = "edgellm"


def with_routes(options: SessionOptions, wishes: RouteWishes) -> SessionOptions:
    """Return the options with the routes that the session may take.

    Raises:
        UsageError: a wish is wrong, or the user's file, the lock or `EDGELLM_OFFLINE` is.
    """
    config = read_config()
    mode = allowed_mode(wishes.mode or config.mode)
    endpoint = endpoint_of(wishes, config)
    isolation = wishes.isolation or config.isolation
    if wishes.endpoint is not None and mode not in OPEN_MODES:
        _LOG.warning("mode %s: the endpoint is not asked; prefer-local would", mode.value)
    if isolation == "none" and mode in OPEN_MODES:
        _LOG.warning("isolation none: answers stay in this process, the endpoint is not asked")
    deadline_s = wishes.deadline_s
    if deadline_s is None:
        deadline_s = config.deadline_s
    else:
        checked("deadline_s", KEYS["deadline_s"], deadline_s)
    if not wishes.app.isprintable() or not 0 < len(wishes.app) <= _MAX_NAME:
        raise UsageError(f"app must be printable, and 1 to {_MAX_NAME} characters long")
    return dataclasses.replace(
        options,
        mode=mode,
        isolation=isolation,
        cloud=None if endpoint is None else _cloud(endpoint, wishes, config),
        on_failure=wishes.on_failure or config.on_failure,
        deadline_s=deadline_s,
        force=wishes.force,
        app=wishes.app,
    )


def endpoint_of(wishes: RouteWishes, config: Config) -> Endpoint | None:
    """Return the endpoint that may be asked, or None.

    Raises:
        UsageError: only its URL or only its model is known, or the URL is none.
    """
    given, model = wishes.endpoint, wishes.endpoint_model
    if isinstance(given, Endpoint):
        endpoint: Endpoint | None = given
        if model is not None:
            endpoint = dataclasses.replace(given, model=model)
    elif given is None and model is None:
        endpoint = config.endpoint
    else:
        endpoint = config.endpoint_from(given, model)
    if endpoint is not None:
        origin_of(endpoint.url)
    return endpoint


def budget_of(wished: Budget | None, kept: Budget) -> Budget:
    """Return a budget with the user's own limits wherever a program names none.

    Raises:
        UsageError: a limit is no number, or out of range.
    """
    given: dict[str, Any] = {} if wished is None else wished.to_wire()
    limits = {
        name: checked(f"budget.{name}", KEYS[f"budget.{name}"], value)
        for name, value in given.items()
        if value is not None and value is not False
    }
    return dataclasses.replace(kept, **cast("dict[str, Any]", limits))


def _cloud(endpoint: Endpoint, wishes: RouteWishes, config: Config) -> CloudOptions:
    key = wishes.api_key
    if key is None:
        key = functools.partial(api_key, origin_of(endpoint.url))
    return CloudOptions(endpoint, budget_of(wishes.budget, config.budget), key)
