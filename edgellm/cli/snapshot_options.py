"""The flags about prefix snapshots, which every command that answers takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from edgellm.core import Tier
from edgellm.errors import UsageError
from edgellm.paths import CAP_VARIABLE, ENCRYPT_VARIABLE, SHARE_SECRET_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.routing import ShareOptions


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """How prefixes are kept on disk; one field a flag."""

    snapshot: Annotated[
        Tier,
        Option(
            "--snapshot",
            help="Keep the state after the system prompt on disk: exact to the bit, rounded (q8 to q4) "
            "in 1/2 to 1/3 of the bytes, or as suits model and disk (auto: the same answer, unless "
            "--snapshot-loss allows more).",
        ),
    ] = Tier.AUTO
    snapshot_loss: Annotated[
        float,
        Option(
            "--snapshot-loss",
            metavar="KLD",
            help="With auto, take the fewest bytes whose loss, measured once on this model, is at most "
            "this mean KL divergence in nats, such as 0.01.",
        ),
    ] = 0.0
    snapshot_turns: Annotated[
        bool,
        Option(
            "--snapshot-turns",
            help="Keep the state after each answer too, for conversations taken up again later.",
        ),
    ] = False
    snapshot_cap: Annotated[
        str,
        Option(
            "--snapshot-cap",
            metavar="BYTES",
            help=f"What all snapshots may take, as 20GB; else {CAP_VARIABLE}, 10 GiB, or a tenth of "
            "the disk.",
        ),
    ] = ""
    snapshot_encrypt: Annotated[
        str | None,
        Option(
            "--snapshot-encrypt",
            metavar="keyring|file:PATH",
            help="Encrypt snapshots, with a key in the system's keyring or a file of mode 0600; else "
            f"{ENCRYPT_VARIABLE}.",
        ),
    ] = None

    snapshot_share: Annotated[
        str | None,
        Option(
            "--snapshot-share",
            metavar="URL",
            help="Look for snapshots on a Redis server too; needs a mode that is not private, and a "
            f"secret of all machines in {SHARE_SECRET_VARIABLE}.",
        ),
    ] = None
    snapshot_share_trusted: Annotated[
        bool,
        Option(
            "--snapshot-share-trusted",
            help="The server may see prompts though it is another machine.",
        ),
    ] = False
    snapshot_share_write: Annotated[
        bool, Option("--snapshot-share-write", help="Put there what this machine makes, too.")
    ] = False

    def snapshot_settings(self) -> Mapping[str, Any]:
        """Return the fields of `SessionOptions` that these flags set.

        Raises:
            UsageError: a number is none, or loss is allowed where nothing can be chosen.
        """
        from edgellm.paths import parse_cap

        if not (math.isfinite(self.snapshot_loss) and self.snapshot_loss >= 0):
            raise UsageError(
                f"--snapshot-loss must be a number of nats from 0, not {self.snapshot_loss}"
            )
        if self.snapshot_loss > 0 and self.snapshot is not Tier.AUTO:
            raise UsageError(
                f"--snapshot-loss chooses a tier, and --snapshot {self.snapshot.value} did already",
                hint="leave one of the two out",
            )
        return {
            "snapshot": self.snapshot,
            "snapshot_loss": self.snapshot_loss,
            "snapshot_turns": self.snapshot_turns,
            "snapshot_cap_bytes": (
                parse_cap(self.snapshot_cap, "--snapshot-cap") if self.snapshot_cap else None
            ),
            "snapshot_key": self.snapshot_encrypt,
            "snapshot_share": self._share(),
        }

    def _share(self) -> ShareOptions | None:
        if self.snapshot_share is None:
            if self.snapshot_share_trusted or self.snapshot_share_write:
                raise UsageError(
                    "--snapshot-share-trusted and --snapshot-share-write say how, not where",
                    hint="add --snapshot-share URL",
                )
            return None
        from edgellm.runtime.sharing import share_options

        return share_options(
            self.snapshot_share,
            trusted=self.snapshot_share_trusted,
            writes_back=self.snapshot_share_write,
        )
