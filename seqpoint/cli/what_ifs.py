"""`seqpoint what-ifs`."""

from typing import Any

import click

from replay.what_ifs import Recipe, recipe_named, registry
from seqpoint.cli.options import as_json
from seqpoint.cli.output import clean, message, print_json, print_table, say

__all__ = ["command", "warn_of_left_out"]


@click.command("what-ifs")
@click.argument("name", required=False)
@as_json
def command(name: str | None, json_: bool) -> None:
    """List the what-ifs by group, with a sentence and an example each; or say all of NAME.

    \b
    seqpoint what-ifs
    seqpoint what-ifs change_stream
    """
    warn_of_left_out()
    chosen = list(registry().recipes.values()) if name is None else [recipe_named(name)]
    if json_:
        rows = [_content(recipe) for recipe in chosen]
        print_json(rows if name is None else rows[0])
    elif name is None:
        _list(chosen)
    else:
        _show(chosen[0])


def warn_of_left_out() -> None:
    """Say on stderr which what-ifs of other packages are left out, and why."""
    for place, why in registry().problems.items():
        message(f"warning: the what-if {place} is left out: {why}")


def _content(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "group": recipe.group,
        "form": recipe.form,
        "arguments": [
            {
                "name": one.name,
                "kind": one.kind,
                "about": one.about,
                "choices": list(one.choices),
                "default": one.default,
            }
            for one in recipe.arguments
        ],
        "summary": recipe.summary,
        "example": recipe.example,
        "documentation": recipe.documentation,
        "package": recipe.package or "seqpoint",
    }


def _list(recipes: list[Recipe]) -> None:
    """Print a table a group."""
    for group in dict.fromkeys(recipe.group for recipe in recipes):
        mine = [recipe for recipe in recipes if recipe.group == group]
        rows = [
            (one.form, one.summary + (f" (package {one.package})" if one.package else ""), one.example) for one in mine
        ]
        print_table(f"What-ifs: {group}", ("how it is written~", "what it does~", "example~"), rows)


def _show(recipe: Recipe) -> None:
    """Print all of one what-if."""
    say(f"{recipe.form}: {recipe.summary}")
    for line in ["", *recipe.documentation.splitlines(), ""]:
        click.echo(clean(line))
    rows = [
        (one.name, one.kind, one.about, "needed" if one.default is None else one.default or "-")
        for one in recipe.arguments
    ]
    if rows:
        print_table("Arguments", ("name~", "kind~", "what it is~", "left out~"), rows)
    say(f"example: seqpoint project job.trace -w '{recipe.example}'")
    if recipe.package:
        say(f"from the package {recipe.package}")
