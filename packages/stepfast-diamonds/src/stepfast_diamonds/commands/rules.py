"""`stepfast diamonds rules`: what stones are sold for, and changing that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepfast.applications import counted
from stepfast.applications.commands import (
    By,
    DatabaseUrl,
    Json,
    Limit,
    Reason,
    RequiredReason,
    actor,
    complain,
    opened_app,
    print_facts,
    print_json,
    print_table,
    print_tables,
    progress,
)
from stepfast.errors import DatabaseError

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast_diamonds.repricing import DryRun
    from stepfast_diamonds.rule_sets import Imported
    from stepfast_diamonds.rules import RuleSet
    from stepfast_diamonds.rules_file import Lines


app = typer.Typer(help="Pricing and rating rules: list, import, try and activate them.", no_args_is_help=True)

Version = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Which rule set.")]
RulesFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, dir_okay=False, help="JSON, or CSV of pricing rules if it ends in .csv."
    ),
]


def migrate(
    ctx: typer.Context,
    *,
    print_: Annotated[bool, typer.Option("--print", help="Only print the SQL, to be run by hand.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Create the tables of the diamond catalogue, with the default rules. Safe to run again."""
    from stepfast_diamonds.schema import COMPONENT, prepare

    with opened_app(ctx, database_url) as app:
        if print_:
            print_tables(app, COMPONENT)
            return
        prepare(app)
    typer.echo("the tables of the diamond catalogue are there")


@contextmanager
def catalogue(ctx: typer.Context, database_url: str | None) -> Iterator[Stepfast]:
    """An app on the database, which must have the tables of the catalogue."""
    from stepfast_diamonds.schema import naming_the_command

    with opened_app(ctx, database_url) as app:
        try:
            yield app
        except DatabaseError as error:
            raise naming_the_command(error) from error


@app.command("list")
def list_(
    ctx: typer.Context, *, limit: Limit = 50, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List the rule sets, the newest first, how many stones are priced by each, and how many are behind."""
    from stepfast_diamonds.repricing import left_behind
    from stepfast_diamonds.rule_sets import NOT_ACTIVE, list_rules, version_of

    with catalogue(ctx, database_url) as app, app.reading() as tx:
        found = list_rules(tx, limit=limit)
        active = version_of(tx, None)
        behind = left_behind(tx, active) if active else 0
    if json:
        print_json(found)
        return
    print_table(
        ("version", "", "pricing rules", "rating rules", "stones", "name", "created (UTC)", "by"),
        [
            (
                it.version,
                "active" if it.active else "",
                "none, declared" if it.declared_empty else it.pricing_rules,
                it.rating_rules,
                it.stones,
                it.name,
                it.created_at,
                it.created_by,
            )
            for it in found
        ],
        empty="no rule sets; run `stepfast diamonds migrate` once",
        less=("by", "created (UTC)"),
        cut=("name",),
    )
    if found and not active:
        complain(NOT_ACTIVE)
    _tell_behind(behind)


@app.command("show")
def show(ctx: typer.Context, version: Version, *, database_url: DatabaseUrl = None) -> None:
    """Print a rule set as a file that can be changed and imported."""
    from stepfast_diamonds.rule_sets import find_rules
    from stepfast_diamonds.rules_file import written

    with catalogue(ctx, database_url) as app, app.reading() as tx:
        found = find_rules(tx, version)
    print_json(written(found))


@app.command("import", short_help="Check a file of rules, and store it as a new version.")
def import_(
    ctx: typer.Context,
    file: RulesFile,
    *,
    strict: Annotated[
        bool, typer.Option("--strict", help="Store nothing if a feed or a word of a rule is not known.")
    ] = False,
    by: By = None,
    reason: Reason = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Check a file of rules, and store it as a new version. Nothing changes before that is activated.

    If the active rule set is gone or damaged, the imported one is active at once, and runs that were held go on.
    Everything that is wrong with the file is said at once, and nothing of it is stored then. Feeds and words that nobody
    knows are told, with their lines.
    """
    from stepfast.applications import persist, record_audit
    from stepfast_diamonds.rule_sets import find_doubts, import_rules

    (rules, lines), who = _read(file), actor(by, reason)
    doubts: list[str] = []

    def work(tx: Any) -> Imported | None:
        doubts[:] = find_doubts(tx, rules, lines)
        if strict and doubts:
            return None
        done = import_rules(tx, rules, who.name)
        if done.created or done.restored:
            record_audit(tx, who, "rules.import", str(done.version), detail={"file": file.name})
        if done.activated:
            record_audit(tx, who, "rules.activate", str(done.version), detail={"before": done.before})
        return done

    with catalogue(ctx, database_url) as app:
        done = persist(app, work)
    if doubts:
        complain(f"{file}: {counted(len(doubts), 'doubt')}")
        for it in doubts:
            typer.echo(f"  {it}", err=True)
    if done is None:
        complain("nothing was imported, because of --strict")
        raise typer.Exit(1)
    if json:
        print_json({**done._asdict(), "doubts": doubts})
    else:
        _tell_import(done)


def _tell_import(done: Imported) -> None:
    if done.activated or done.restored:
        what = "is active, because no other one could be used" if done.activated else "is complete again"
        typer.echo(f"rule set {done.version} {what}; runs that were held for their rules go on by themselves")
    elif done.created:
        typer.echo(
            f"rule set {done.version} is stored; see what it would change: stepfast diamonds rules dry-run {done.version}"
        )
    else:
        typer.echo(f"these rules are rule set {done.version} already; nothing was stored")


@app.command("activate")
def activate(
    ctx: typer.Context,
    version: Version,
    *,
    reason: RequiredReason,
    reprice: Annotated[
        bool, typer.Option("--reprice", help="Have the stones that are there priced by it at once.")
    ] = False,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a rule set the one that counts: for runs that begin from now on, and for the next repricing.

    Stones that are there keep what they cost until they change, or until they are repriced.
    """
    from stepfast.applications import persist, record_audit
    from stepfast_diamonds.repricing import Repricing, left_behind
    from stepfast_diamonds.rule_sets import activate as move

    who = actor(by, reason)
    with catalogue(ctx, database_url) as app:
        repricing = Repricing(app)

        def work(tx: Any) -> dict[str, Any]:
            moved = move(tx, version)
            record_audit(tx, who, "rules.activate", str(version), detail={"before": moved.before})
            job = repricing.ask(tx).id if reprice else None
            return {
                "version": version,
                "before": moved.before,
                "stones": left_behind(tx, version),
                "job": job,
            }

        done = persist(app, work)
    if json:
        print_json(done)
        return
    typer.echo(f"rule set {version} is active, it was {done['before']}")
    if done["job"]:
        typer.echo(f"job {done['job']} prices {done['stones']:,} stones")
    else:
        _tell_behind(done["stones"])


@app.command("dry-run")
def dry_run(
    ctx: typer.Context,
    version: Version,
    *,
    examples: Annotated[
        int, typer.Option("--examples", metavar="N", min=0, max=1_000, help="Show so many stones.")
    ] = 5,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show how many stones would change their price by a rule set, and by how much. Changes nothing."""
    from stepfast_diamonds import repricing as rules_dry_run
    from stepfast_diamonds.rule_sets import find_rules, list_rules

    with catalogue(ctx, database_url) as app, app.reading() as tx:
        rules = find_rules(tx, version)
        stones = sum(it.stones for it in list_rules(tx))
        with progress("stones", stones) as told:
            found = rules_dry_run.dry_run(tx, rules, examples=examples, told=told)
    if json:
        print_json(
            {**vars(found), "changed": found.changed, "examples": [it._asdict() for it in found.examples]}
        )
    else:
        _print(found)


def _tell_behind(stones: int) -> None:
    """They keep what they cost until they change, unless somebody asks."""
    if stones:
        have = "have" if stones > 1 else "has"
        typer.echo(
            f"{counted(stones, 'stone')} {have} the price of another rule set; reprice: stepfast diamonds rules reprice"
        )


def _read(file: Path) -> tuple[RuleSet, Lines]:
    from stepfast_diamonds.rules_file import RulesError, lines_of, read_rules

    try:
        text = file.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        complain(f"{file} cannot be read as text: {error}")
        raise typer.Exit(1) from None
    as_csv = file.suffix.lower() == ".csv"
    try:
        return read_rules(text, as_csv=as_csv), lines_of(text, as_csv=as_csv)
    except RulesError as error:
        complain(f"{file} cannot be used, and nothing was imported:")
        for problem in error.problems:
            typer.echo(f"  {problem}", err=True)
        raise typer.Exit(1) from None


def _print(found: DryRun) -> None:
    print_facts(
        (
            ("rule set", found.version),
            ("stones", f"{found.stones:,}"),
            ("would change", f"{found.changed:,}: {found.dearer:,} dearer, {found.cheaper:,} cheaper"),
            ("rated anew", f"{found.rated_anew:,}" if found.rated_anew else None),
            ("without a rule", f"{found.unpriced:,}" if found.unpriced else None),
            ("all prices", f"{found.before:,} → {found.after:,} ({found.after - found.before:+,})"),
        )
    )
    if found.examples:
        print_table(
            ("stone", "feed", "feed's price", "now", "then", "%"),
            [
                (it.supplier_stone_id, it.feed, it.feed_price, it.before, it.after, f"{it.percent:+}")
                for it in found.examples
            ],
            empty="",
        )
