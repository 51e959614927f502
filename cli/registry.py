"""``partgcd registry``: versions of a model, and which of them answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

registry = typer.Typer(
    help="Versions of a model that never change, and which of them answers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_R = Annotated[Path, typer.Argument(help="The registry's folder.", show_default=False)]
_FORMAT = Annotated[str, typer.Option("--format", help="table, csv or jsonl.")]


@registry.command("init")
def init(path: _R) -> None:
    """Make a registry on a local disk.

    Example: partgcd registry init models
    """
    from partgcd.registry.versions import Registry

    Registry.init(path)
    typer.echo(f"registry in {path}; next: partgcd registry add {path} BUNDLE --alias champion")


@registry.command("add", short_help="Add a bundle as the next version.")
def add(
    path: _R,
    bundle: Annotated[Path, typer.Argument(help="A bundle; it is copied in.", show_default=False)],
    alias: Annotated[str | None, typer.Option(help="champion or candidate.")] = None,
    align: Annotated[
        bool, typer.Option("--align", help="Give a bundle of another run the champion's class ids.")
    ] = False,
    note: Annotated[str, typer.Option(help="What to remember about it.")] = "",
) -> None:
    """Add a bundle as the next version; the first one is the champion unless --alias says otherwise.

    Example: partgcd registry add models bundle --alias candidate
    """
    from partgcd.config.errors import UserError
    from partgcd.registry.edits import settle_names
    from partgcd.registry.versions import Registry

    if alias not in (None, "champion", "candidate"):
        raise UserError(f"no alias '{alias}' to add to: use champion or candidate")
    there = Registry(path)
    before = len(there.versions())
    if align and before:
        from partgcd.continual.align import add_aligned

        version, message = add_aligned(there, bundle, note)
        typer.echo(message)
    else:
        version = there.add(bundle, note=note)
    for line in settle_names(there, version):
        typer.echo(line, err=True)
    if alias == "champion" or (alias is None and not there.aliases()):
        there.promote(str(version.number), note or "added")
    elif alias == "candidate":
        there.point("candidate", version.number, note or "added")
    known = "is already" if version.number <= before else "is"
    names = [name for name, number in there.aliases().items() if number == version.number]
    typer.echo(
        f"bundle {version.record['bundle'][:12]} {known} version {version.number} ({', '.join(names) or '-'})"
    )


@registry.command("list")
def list_versions(path: _R, form: _FORMAT = "table") -> None:
    """List all versions with their aliases.

    Example: partgcd registry list models
    """
    from partgcd.cli.rows import check_format, print_rows
    from partgcd.registry.versions import Registry

    check_format(form)
    there = Registry(path)
    aliases = there.aliases()
    rows = [_row(version.record, aliases) for version in there.versions()]
    print_rows(rows, form, ["version", "alias", "classes", "parent", "added", "bundle", "note"])


@registry.command("show", short_help="Print where a version lies and where it comes from.")
def show(
    path: _R,
    version: Annotated[str, typer.Argument(help="A number, or champion, candidate, previous.")] = "champion",
) -> None:
    """Print where a version lies, where it comes from, and every move of an alias to it, as JSON.

    Example: partgcd registry show models champion
    """
    from partgcd.data.cells import json_line
    from partgcd.registry.versions import Registry

    there = Registry(path)
    found = there.version(version)
    moves = [move for move in there.moves() if found.number in (move["from"], move["to"])]
    files = sorted(entry.name for entry in found.path.iterdir() if entry.is_file())
    shown = {**found.record, "path": str(found.bundle), "files": files, "moves": moves}
    typer.echo(json_line(shown, indent=2))


@registry.command("promote", short_help="Make a version the champion, in one step.")
def promote(
    path: _R,
    version: Annotated[str, typer.Argument(help="A number or an alias.")] = "candidate",
    why: Annotated[str, typer.Option(help="What to remember about it.")] = "by hand",
) -> None:
    """Make a version the champion, in one step; the champion becomes 'previous'.

    Example: partgcd registry promote models
    """
    from partgcd.registry.versions import Registry

    found = Registry(path).promote(version, why)
    typer.echo(f"version {found.number} is the champion")


@registry.command("rollback")
def rollback(path: _R) -> None:
    """Exchange champion and previous, in one step.

    Example: partgcd registry rollback models
    """
    from partgcd.registry.versions import Registry

    found = Registry(path).rollback()
    typer.echo(f"version {found.number} is the champion again")


@registry.command("verify", short_help="Check every byte of every version.")
def verify(path: _R) -> None:
    """Check every byte of every version, the aliases and the log of classes. Exit code 1 if anything is wrong.

    Example: partgcd registry verify models
    """
    from partgcd.registry.versions import Registry

    there = Registry(path)
    problems = there.verify()
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{len(there.versions())} versions are whole; {_shown(there.aliases()) or 'no alias is set'}")


def _shown(aliases: dict[str, int]) -> str:
    return ", ".join(f"{name} is {number}" for name, number in aliases.items())


def _row(record: dict[str, Any], aliases: dict[str, int]) -> dict[str, Any]:
    names = [name for name, number in aliases.items() if number == record["version"]]
    return {
        **record,
        "bundle": record["bundle"][:12],
        "classes": len(record["classes"]),
        "alias": " ".join(names),
    }
