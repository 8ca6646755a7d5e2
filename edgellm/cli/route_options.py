"""The flags that say where an answer may be made, which every command that answers takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from edgellm.cli.snapshot_options import SnapshotOptions
from edgellm.cli.variables import OFFLINE_VARIABLE
from edgellm.config.keys import Isolation  # noqa: TC001  # typer reads the annotations at run time
from edgellm.core import Mode  # noqa: TC001  # likewise
from edgellm.routing import OnFailure  # noqa: TC001  # likewise

if TYPE_CHECKING:
    from edgellm.runtime.routes import RouteWishes

EndpointUrl = Annotated[
    str | None,
    Option(
        "--endpoint",
        metavar="URL",
        help="OpenAI-compatible server for when this machine cannot; else endpoint.url of "
        "`edgellm config`. Its key: EDGELLM_API_KEY or the keyring.",
    ),
]
EndpointModel = Annotated[
    str | None,
    Option("--endpoint-model", metavar="NAME", help="What the server calls the model."),
]


@dataclass(frozen=True, slots=True)
class RouteOptions(SnapshotOptions):
    """Where an answer may be made; one field a flag. None leaves it to `config.toml`."""

    mode: Annotated[
        Mode | None,
        Option(
            "--mode",
            help="Routes allowed; else that of `edgellm config`, or private. "
            f"{OFFLINE_VARIABLE}=1 and an administrator's lock make it stricter.",
        ),
    ] = None
    endpoint: EndpointUrl = None
    endpoint_model: EndpointModel = None
    budget_usd: Annotated[
        float | None,
        Option(
            "--budget-usd", metavar="X", help="Most to spend on endpoints a day, from midnight UTC."
        ),
    ] = None
    budget_tokens: Annotated[
        int | None,
        Option("--budget-tokens", metavar="N", min=0, help="Most tokens there a day."),
    ] = None
    on_failure: Annotated[
        OnFailure | None,
        Option(
            "--on-failure",
            help="When an answer breaks off: go on with its text, here first (resume-local), here "
            "with an endpoint's text too (continue), begin anew (restart), or stop.",
        ),
    ] = None
    deadline: Annotated[
        float | None,
        Option("--deadline", metavar="S", help="Seconds to the first token, or ask elsewhere."),
    ] = None
    isolation: Annotated[
        Isolation | None,
        Option("--isolation", help="Run the engine in a process of its own (worker), or in this."),
    ] = None
    force: Annotated[
        bool,
        Option(
            "--force",
            help="Try a model all the same that does not fit the memory, or that rests because "
            "memory ran out.",
        ),
    ] = False
    private: Annotated[
        bool,
        Option("--private", help="Keep this conversation on this machine, whatever the mode."),
    ] = False

    def route_wishes(self) -> RouteWishes:
        """Return what these flags say of routes."""
        from edgellm.routing import Budget
        from edgellm.runtime.routes import RouteWishes

        return RouteWishes(
            mode=self.mode,
            endpoint=self.endpoint,
            endpoint_model=self.endpoint_model,
            budget=Budget(usd_per_day=self.budget_usd, tokens_per_day=self.budget_tokens),
            isolation=self.isolation,
            on_failure=self.on_failure,
            deadline_s=self.deadline,
            force=self.force,
        )
