"""The tables of the catalogue. They are the application's own: who syncs something else never has them.

Every statement may be run again. PostgreSQL and SQLite take all of it in one transaction; MariaDB ends a transaction
at every table, so each stands for itself there.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from stepfast.database.statement import Statement, sql
from stepfast.errors import DatabaseError, SchemaError
from stepfast_diamonds.rule_sets import begin_with

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast import Stepfast
    from stepfast.database.dialects import Dialect


ADVISORY_KEY: Final = 4_846_171_026
_MISSING: Final = ("no such table", "does not exist", "doesn't exist")

# Money and measures are decimals. `status` follows `deleted_at`, which the sweep sets: the two cannot disagree.
DIAMONDS = sql("""
    CREATE TABLE IF NOT EXISTS diamonds (
        id {sequence},
        feed {label} NOT NULL,
        supplier_stone_id {label} NOT NULL,
        offer_id {label} NOT NULL,
        shape VARCHAR(100) NOT NULL,
        carats DECIMAL(6,2) NOT NULL,
        color VARCHAR(100),
        clarity VARCHAR(100),
        cut VARCHAR(100),
        polish VARCHAR(100),
        symmetry VARCHAR(100),
        fluorescence VARCHAR(100),
        fluorescence_intensity VARCHAR(100),
        fancy_color VARCHAR(100),
        fancy_intensity VARCHAR(100),
        fancy_overtone VARCHAR(100),
        ratio DECIMAL(5,3),
        lab_grown INTEGER NOT NULL,
        treated INTEGER,
        feed_price DECIMAL(12,2) NOT NULL,
        diamond_price DECIMAL(12,2),
        price_per_carat DECIMAL(12,2) NOT NULL,
        price_model_price DECIMAL(12,2) NOT NULL,
        markup_ratio DECIMAL(5,4) NOT NULL,
        pricing_rating INTEGER,
        rating INTEGER NOT NULL,
        ruleset_version INTEGER NOT NULL,
        availability VARCHAR(20) NOT NULL,
        raw_availability VARCHAR(100),
        hold_id VARCHAR(200),
        image_url {document},
        video_url {document},
        meta_images {json:meta_images},
        certificate_lab VARCHAR(100),
        certificate_number VARCHAR(100),
        certificate_pdf_url {document},
        table_pct DECIMAL(6,2),
        depth_pct DECIMAL(6,2),
        length_mm DECIMAL(6,2),
        width_mm DECIMAL(6,2),
        depth_mm DECIMAL(6,2),
        crown_angle DECIMAL(6,2),
        crown_height DECIMAL(6,2),
        pavilion_angle DECIMAL(6,2),
        pavilion_depth DECIMAL(6,2),
        girdle VARCHAR(100),
        culet_size VARCHAR(100),
        eye_clean VARCHAR(100),
        brown VARCHAR(100),
        green VARCHAR(100),
        milky VARCHAR(100),
        supplier_name VARCHAR(200),
        supplier_legal_name VARCHAR(200),
        source_updated_at BIGINT,
        created_at BIGINT NOT NULL DEFAULT ({now}),
        updated_at BIGINT NOT NULL DEFAULT ({now}),
        stale_since BIGINT,
        deleted_at BIGINT,
        status VARCHAR(10) GENERATED ALWAYS AS (CASE WHEN deleted_at IS NULL THEN 'active' ELSE 'deleted' END) STORED
    ) {table_options}
""")
DIAMONDS_STONE = sql("CREATE UNIQUE INDEX IF NOT EXISTS diamonds_stone ON diamonds (supplier_stone_id, feed)")
DIAMONDS_RULES = sql("CREATE INDEX IF NOT EXISTS diamonds_rules ON diamonds (ruleset_version)")
DIAMONDS_CERTIFICATE = sql("CREATE INDEX IF NOT EXISTS diamonds_certificate ON diamonds (certificate_number)")

# Rule sets are written once and never changed; which of them counts is the one row of `pricing_active`.
RULE_SETS = sql("""
    CREATE TABLE IF NOT EXISTS pricing_rule_sets (
        version INTEGER NOT NULL PRIMARY KEY,
        name VARCHAR(200) NOT NULL,
        margin_natural DECIMAL(6,2) NOT NULL,
        margin_lab DECIMAL(6,2) NOT NULL,
        margin_fancy DECIMAL(6,2) NOT NULL,
        rating_fallback INTEGER NOT NULL,
        declared_empty INTEGER NOT NULL,
        digest VARCHAR(64) NOT NULL,
        created_at BIGINT NOT NULL,
        created_by VARCHAR(200) NOT NULL
    ) {table_options}
""")
PRICING_RULES = sql("""
    CREATE TABLE IF NOT EXISTS pricing_rules (
        version INTEGER NOT NULL,
        number INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        stone_type VARCHAR(10),
        price_min DECIMAL(12,2) NOT NULL,
        price_max DECIMAL(12,2),
        feed {label},
        margin_modifier DECIMAL(5,2) NOT NULL,
        rating INTEGER,
        PRIMARY KEY (version, number)
    ) {table_options}
""")
RATING_RULES = sql("""
    CREATE TABLE IF NOT EXISTS rating_rules (
        version INTEGER NOT NULL,
        number INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        rating INTEGER NOT NULL,
        conditions {json:conditions},
        PRIMARY KEY (version, number)
    ) {table_options}
""")
ACTIVE = sql("""
    CREATE TABLE IF NOT EXISTS pricing_active (
        id INTEGER NOT NULL PRIMARY KEY,
        version INTEGER NOT NULL,
        previous INTEGER,
        changed_at BIGINT NOT NULL
    ) {table_options}
""")
PINS = sql("""
    CREATE TABLE IF NOT EXISTS pricing_pins (
        run_id {key} NOT NULL PRIMARY KEY,
        feed {label} NOT NULL,
        version INTEGER NOT NULL,
        pinned_at BIGINT NOT NULL
    ) {table_options}
""")
DATASET_VERSIONS = sql("""
    CREATE TABLE IF NOT EXISTS dataset_versions (
        feed {label} NOT NULL PRIMARY KEY,
        version BIGINT NOT NULL,
        changed_at BIGINT NOT NULL
    ) {table_options}
""")

# What a repricing changed, so that it can be taken back. `id` of a snapshot is that of the diamond.
REPRICINGS = sql("""
    CREATE TABLE IF NOT EXISTS repricings (
        id {key} NOT NULL PRIMARY KEY,
        job_id {key} NOT NULL,
        from_version INTEGER,
        to_version INTEGER NOT NULL,
        state VARCHAR(12) NOT NULL,
        looked_at BIGINT NOT NULL DEFAULT 0,
        changed BIGINT NOT NULL DEFAULT 0,
        unpriced BIGINT NOT NULL DEFAULT 0,
        started_at BIGINT NOT NULL,
        ended_at BIGINT
    ) {table_options}
""")
SNAPSHOTS = sql("""
    CREATE TABLE IF NOT EXISTS repricing_snapshots (
        repricing_id {key} NOT NULL,
        id BIGINT NOT NULL,
        old_version INTEGER NOT NULL,
        old_price DECIMAL(12,2) NOT NULL,
        old_ratio DECIMAL(5,4) NOT NULL,
        old_pricing_rating INTEGER,
        old_rating INTEGER NOT NULL,
        new_price DECIMAL(12,2) NOT NULL,
        changed_at BIGINT NOT NULL,
        PRIMARY KEY (repricing_id, id)
    ) {table_options}
""")

# What all processes know about the source: the token, sealed, and how fast it may be asked.
TOKENS = sql("""
    CREATE TABLE IF NOT EXISTS nivoda_tokens (
        id {key} NOT NULL PRIMARY KEY,
        sealed {document},
        renew_at BIGINT,
        version BIGINT NOT NULL,
        turn_of VARCHAR(100),
        turn_until BIGINT,
        problem VARCHAR(400),
        trouble VARCHAR(20),
        changed_at BIGINT NOT NULL
    ) {table_options}
""")
PACE = sql("""
    CREATE TABLE IF NOT EXISTS nivoda_pace (
        id {key} NOT NULL PRIMARY KEY,
        gap BIGINT NOT NULL,
        changed_at BIGINT NOT NULL,
        arrival BIGINT NOT NULL,
        quiet_until BIGINT NOT NULL
    ) {table_options}
""")

_RAW = """
    CREATE {how} VIEW {exists} raw_diamonds_nivoda AS
    SELECT r.feed AS feed, r.item_id AS supplier_stone_id, {offer} AS offer_id, r.payload AS payload,
           r.content_hash AS content_hash, r.run_id AS run_id, {observed} AS observed_at,
           CASE r.pending WHEN 0 THEN {true} ELSE {false} END AS consolidated, {applied} AS consolidated_at
      FROM stepfast_raw r {read_only}
     WHERE r.feed IN ('nivoda-natural', 'nivoda-labgrown')
"""
_UNIX = "strftime('%Y-%m-%d %H:%M:%f', r.{} / 1000000.0, 'unixepoch')"
RAW = sql(
    _RAW.format(
        how="", exists="IF NOT EXISTS", offer="json_extract(r.payload, '$.id')", true="1", false="0", read_only="",
        observed=_UNIX.format("observed_at"), applied=_UNIX.format("applied_at"),
    ),
    postgresql=_RAW.format(
        how="OR REPLACE", exists="", offer="CAST(r.payload AS JSON) ->> 'id'", true="true", false="false",
        read_only="CROSS JOIN (SELECT 1) AS read_only",
        observed="to_timestamp(r.observed_at / 1000000.0)", applied="to_timestamp(r.applied_at / 1000000.0)",
    ),
    mariadb=_RAW.format(
        how="OR REPLACE ALGORITHM = TEMPTABLE", exists="", offer="JSON_VALUE(r.payload, '$.id')", true="TRUE",
        false="FALSE", read_only="",
        observed="FROM_UNIXTIME(r.observed_at * 0.000001)", applied="FROM_UNIXTIME(r.applied_at * 0.000001)",
    ),
)  # fmt: skip

STATEMENTS: Final[tuple[Statement, ...]] = (
    DIAMONDS, DIAMONDS_STONE, DIAMONDS_RULES, DIAMONDS_CERTIFICATE, RULE_SETS, PRICING_RULES, RATING_RULES, ACTIVE,
    PINS, DATASET_VERSIONS, REPRICINGS, SNAPSHOTS, TOKENS, PACE, RAW,
)  # fmt: skip


def prepare(app: Stepfast) -> None:
    """Create what is missing, and begin with the default rules. Safe to run again, from many processes at once."""
    database = app.database
    if database.dialect.name == "mariadb":
        with closing(database.connect()) as connection:
            for text in _texts(database.dialect):
                connection.execute(text, {})
    else:
        with app.transaction() as tx:
            if tx.dialect.name == "postgresql":
                tx.execute("SET LOCAL lock_timeout = '60s'")
                tx.execute(f"SELECT pg_advisory_xact_lock({ADVISORY_KEY})")
            for statement in STATEMENTS:
                tx.run(statement)
    with app.transaction() as tx:
        begin_with(tx)


def printed(dialect: Dialect) -> str:
    """The tables as SQL, for people whose database administrator runs it."""
    return ";\n\n".join(text.strip().replace("%%", "%") for text in _texts(dialect)) + ";\n"


def _texts(dialect: Dialect) -> Iterator[str]:
    from stepfast.database.dialects import DIALECTS

    for statement in STATEMENTS:
        yield statement.render(DIALECTS[dialect.name])  # the words of the real clock, whatever a test has set


def saying_so(error: DatabaseError) -> Exception:
    """A table is missing: say which command creates it."""
    if any(it in str(error) for it in _MISSING):
        return SchemaError(
            "the database has no tables of the diamond catalogue; run `stepfast diamonds migrate` once"
        )
    return error
