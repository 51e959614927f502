"""``partgcd classes``: what people call the categories of a registry, and which of them are one or two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

classes = typer.Typer(
    help="Names, merges and splits of a registry's classes; ids stay for life.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_R = Annotated[Path, typer.Argument(help="The registry's folder.", show_default=False)]
_CLASS = Annotated[str, typer.Argument(help="A class id, or a name if only one has it.", show_default=False)]
_FORMAT = Annotated[str, typer.Option("--format", help="table, csv or jsonl.")]

_COLUMNS = ["id", "name", "kind", "status", "labelled", "assigned", "since", "merged_into", "split_into"]


@classes.command("list")
def list_all(
    path: _R,
    form: _FORMAT = "table",
    everything: Annotated[bool, typer.Option("--all", help="Retired classes too.")] = False,
) -> None:
    """List the classes, oldest first.

    Example: partgcd classes list models --format csv
    """
    from partgcd.cli.rows import check_format, print_rows
    from partgcd.registry.roster import list_classes
    from partgcd.registry.versions import Registry

    check_format(form)
    rows = [row.as_json() for row in list_classes(Registry(path)) if everything or row.status == "active"]
    print_rows(rows, form, _COLUMNS)


@classes.command("show")
def show(path: _R, name: _CLASS) -> None:
    """Print all that is known of a class, as JSON.

    Example: partgcd classes show models c-0123456789
    """
    from partgcd.data.cells import json_line
    from partgcd.registry.naming import find_class
    from partgcd.registry.versions import Registry

    typer.echo(json_line(find_class(Registry(path), name).as_json(), indent=2))


@classes.command("rename")
def rename(
    path: _R, name: _CLASS, new: Annotated[str, typer.Argument(help="The new name.", show_default=False)]
) -> None:
    """Name a class; the name stays whatever is trained later.

    Example: partgcd classes rename models c-0123456789 'Scarlet tanager'
    """
    from partgcd.data.cells import shown
    from partgcd.registry.edits import rename as give
    from partgcd.registry.versions import Registry

    done = give(Registry(path), name, new)
    typer.echo(shown(f"{done['id']} is now '{done['name']}' (was '{done['before']}')"))


@classes.command("note")
def note(
    path: _R, name: _CLASS, text: Annotated[str, typer.Argument(help="The note.", show_default=False)]
) -> None:
    """Write something down about a class.

    Example: partgcd classes note models c-0123456789 'only seen in spring'
    """
    from partgcd.registry.edits import note as write
    from partgcd.registry.versions import Registry

    typer.echo(f"noted about {write(Registry(path), name, text)['id']}")


@classes.command("merge", short_help="Make two classes one; the older id survives.")
def merge(path: _R, one: _CLASS, other: _CLASS) -> None:
    """Make two classes one: the older id survives, probabilities are summed from now on.

    Example: partgcd classes merge models c-0123456789 c-abcdef0123
    """
    from partgcd.registry.edits import merge as join
    from partgcd.registry.versions import Registry

    done = join(Registry(path), one, other)
    typer.echo(f"{done['id']} is merged into {done['into']}; partgcd classes undo {path} takes it back")


@classes.command("split", short_help="Make a class two by how its images fall apart.")
def split(path: _R, name: _CLASS) -> None:
    """Make a class two by how its exemplars fall apart; it retires, its children have new ids.

    Example: partgcd classes split models c-0123456789
    """
    from partgcd.data.cells import shown
    from partgcd.registry.edits import split as part
    from partgcd.registry.versions import Registry

    done = part(Registry(path), name)
    children = ", ".join(f"{c['id']} '{c['name']}' ({len(c['keys'])} exemplars)" for c in done["children"])
    children = shown(children)
    typer.echo(f"{done['id']} is split into {children}; partgcd classes undo {path} takes it back")


@classes.command("undo")
def undo(path: _R) -> None:
    """Take back the newest change that still stands.

    Example: partgcd classes undo models
    """
    from partgcd.registry.edits import undo as take_back
    from partgcd.registry.versions import Registry

    done = take_back(Registry(path))
    typer.echo(f"undone: {done['op']} of {done['id']} ({done['time']})")


@classes.command("history")
def history(
    path: _R,
    name: Annotated[str | None, typer.Argument(help="Only of this class.", show_default=False)] = None,
    form: _FORMAT = "table",
) -> None:
    """Print every change that people made, oldest first.

    Example: partgcd classes history models
    """
    from partgcd.cli.rows import check_format, print_rows
    from partgcd.registry.edits import history as read
    from partgcd.registry.versions import Registry

    check_format(form)
    events = read(Registry(path), name)
    if form == "jsonl":
        print_rows(events, form, [])
        return
    rows = [{**event, "what": _description(event), "id": event.get("id")} for event in events]
    print_rows(rows, form, ["seq", "time", "op", "id", "what", "undone"])


def _description(event: dict[str, Any]) -> str:
    if event["op"] == "rename":
        return f"'{event['before']}' to '{event['name']}'"
    if event["op"] == "note":
        return str(event["text"])
    if event["op"] == "merge":
        return f"into {event['into']}"
    if event["op"] == "split":
        return "into " + " and ".join(child["id"] for child in event["children"])
    return f"line {event['undoes']}"
