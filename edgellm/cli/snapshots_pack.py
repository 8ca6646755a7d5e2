"""`edgellm snapshots keygen`, `export` and `import`: snapshots on their way to another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from edgellm.cli.flags import with_options
from edgellm.cli.options import AnswerOptions
from edgellm.errors import UsageError
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from edgellm.store.packs.pack_format import Manifest

KEYGEN_EXAMPLES: Final = """
edgellm snapshots keygen -o ~/.ssh/edgellm-packs
edgellm snapshots keygen -o packs --json
"""
EXPORT_EXAMPLES: Final = """
edgellm snapshots export 3fa9 --model model.gguf -o rules.ekp --sign-key ~/.ssh/edgellm-packs
edgellm snapshots export 3fa9 81c0 --model model.gguf -o rules.ekp
"""
IMPORT_EXAMPLES: Final = """
edgellm snapshots import rules.ekp --trust edgellm-packs.pub
edgellm snapshots import my-own.ekp --allow-unsigned
"""
EXPORT_FLAGS: Final = frozenset({"lora", "threads", "gpu_layers", "snapshot_encrypt", "json"})
IMPORT_FLAGS: Final = frozenset({"snapshot_encrypt", "json"})
_SHOWN: Final = 16

Out = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="File to write.")]


def keygen(
    out: Out,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Make a key to sign packs with, and beside it the public one, OUT.pub, for others.

    The private key is not encrypted: it is a file of mode 0600. Give nobody but yourself that one.
    """
    from edgellm.cli import render
    from edgellm.store.packs.signing import PUBLIC_SUFFIX, make_keys

    public = make_keys(out)
    if as_json:
        render.json_line({"type": "keys", "private": str(out), "public": public.hex()})
        return
    render.facts(
        [
            ("private key", str(out)),
            ("public key", f"{out}{PUBLIC_SUFFIX}"),
            ("id", public.hex()[:_SHOWN]),
        ]
    )


@with_options(AnswerOptions, only=EXPORT_FLAGS)
def export(
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY", help="Keys, or unique starts of them.")
    ],
    *,
    model: Annotated[
        Path,
        typer.Option("--model", metavar="MODEL", help="The GGUF file that they are of."),
    ],
    out: Out,
    sign_key: Annotated[
        Path | None,
        typer.Option("--sign-key", metavar="FILE", help="Private key of `snapshots keygen`."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace OUT if it is a pack; nothing else goes.")
    ] = False,
    options: AnswerOptions,
) -> None:
    """Write snapshots, and those they lean on, into one signed file for machines with this model.

    The model is opened to say what follows each of them; who imports the file has to say the same.
    The file is not encrypted, even if the store is.
    A snapshot is as private as its prompt: the prompt can be computed back from it.
    """
    from edgellm.cli import render
    from edgellm.cli.answer import Status
    from edgellm.cli.snapshots import full_keys, open_store
    from edgellm.runtime.shipping import export as ship
    from edgellm.store.packs.pack import check_out
    from edgellm.store.packs.signing import read_signer

    check_out(out, overwrite=force)
    signer = None if sign_key is None else read_signer(sign_key)
    store = open_store(options.snapshot_encrypt)
    chosen = full_keys(keys, [entry.key for entry in store.entries()])
    status = Status(quiet=options.json)
    status.show(f"asking {model.name} what follows")
    try:
        done = ship(model, options.session_options(), store, chosen, out, signer)
    finally:
        status.show("")
    public = b"" if signer is None else signer.public
    _told("exported", done.manifest, public, f"{out}, {format_bytes(done.n_bytes)}", options.json)
    if signer is None:
        render.warning("nobody signed it: others take it only with --allow-unsigned")


@with_options(AnswerOptions, only=IMPORT_FLAGS)
def import_(
    pack: Annotated[Path, typer.Argument(metavar="FILE", help="Pack of `snapshots export`.")],
    *,
    trust: Annotated[
        list[Path] | None,
        typer.Option("--trust", metavar="FILE", help="Public key of who may send; repeatable."),
    ] = None,
    allow_unsigned: Annotated[
        bool,
        typer.Option("--allow-unsigned", help="Take also what nobody signed, or somebody unknown."),
    ] = False,
    options: AnswerOptions,
) -> None:
    """Take in snapshots that somebody trusted made with the same model.

    The signature is checked before all else, then every byte. At its first use the model has to say
    after each snapshot what it said where it was made; else it is removed and the prompt is read.
    """
    from edgellm.cli import render
    from edgellm.cli.snapshots import open_store
    from edgellm.store.packs.importing import add_pack
    from edgellm.store.packs.signing import read_public

    if not trust and not allow_unsigned:
        raise UsageError(
            "nobody is trusted", hint="give --trust FILE with the public key of whoever made it"
        )
    trusted = [read_public(path) for path in trust or ()]
    store = open_store(options.snapshot_encrypt)
    added = add_pack(store.files, pack, trusted, allow_unsigned=allow_unsigned)
    if added.public not in trusted:
        render.warning("nobody who is trusted here vouches for it")
    what = "waits already" if added.known else "waits for its first use"
    _told("imported", added.manifest, added.public, what, options.json)


def _told(verb: str, manifest: Manifest, public: bytes, where: str, as_json: bool) -> None:
    from edgellm.cli import render

    keys = [file.key for file in manifest.files]
    if as_json:
        render.json_line(
            {
                "type": verb,
                "keys": keys,
                "model": manifest.field("model"),
                "n_bytes": sum(file.n_bytes for file in manifest.files),
                "signed_by": public.hex(),
            }
        )
        return
    model = f"{manifest.field('name')} {manifest.field('model')[:12]}".strip()
    tokens = ", ".join(str(file.n_tokens) for file in manifest.files)
    render.facts(
        [
            (verb, f"{len(keys)} ({where})"),
            ("model", model),
            ("tokens", tokens),
            ("signed by", public.hex()[:_SHOWN] or "nobody"),
        ]
    )
