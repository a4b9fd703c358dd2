CREATE TABLE IF NOT EXISTS stepfast_schema (
        component VARCHAR(128) NOT NULL,
        version INTEGER NOT NULL,
        name VARCHAR(100) NOT NULL,
        applied_at BIGINT NOT NULL,
        PRIMARY KEY (component, version)
    );

-- diamonds 0001 first

-- The catalogue. Money and measures are decimals. `status` follows `deleted_at`, which the sweep sets: the two cannot disagree.
CREATE TABLE IF NOT EXISTS diamonds (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    feed VARCHAR(200) NOT NULL,
    supplier_stone_id VARCHAR(200) NOT NULL,
    offer_id VARCHAR(200) NOT NULL,
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
    image_url TEXT,
    video_url TEXT,
    meta_images TEXT NOT NULL CHECK (json_valid(meta_images)),
    certificate_lab VARCHAR(100),
    certificate_number VARCHAR(100),
    certificate_pdf_url TEXT,
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
    created_at BIGINT NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)),
    updated_at BIGINT NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)),
    stale_since BIGINT,
    deleted_at BIGINT,
    status VARCHAR(10) GENERATED ALWAYS AS (CASE WHEN deleted_at IS NULL THEN 'active' ELSE 'deleted' END) STORED
) ;

CREATE UNIQUE INDEX IF NOT EXISTS diamonds_stone ON diamonds (supplier_stone_id, feed);

CREATE INDEX IF NOT EXISTS diamonds_rules ON diamonds (ruleset_version);

CREATE INDEX IF NOT EXISTS diamonds_certificate ON diamonds (certificate_number);

-- Rule sets are written once and never changed; the active one is named by the one row of `pricing_active`.
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
) ;

CREATE TABLE IF NOT EXISTS pricing_rules (
    version INTEGER NOT NULL,
    number INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    stone_type VARCHAR(10),
    price_min DECIMAL(12,2) NOT NULL,
    price_max DECIMAL(12,2),
    feed VARCHAR(200),
    margin_modifier DECIMAL(5,2) NOT NULL,
    rating INTEGER,
    PRIMARY KEY (version, number)
) ;

CREATE TABLE IF NOT EXISTS rating_rules (
    version INTEGER NOT NULL,
    number INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    rating INTEGER NOT NULL,
    conditions TEXT NOT NULL CHECK (json_valid(conditions)),
    PRIMARY KEY (version, number)
) ;

CREATE TABLE IF NOT EXISTS pricing_active (
    id INTEGER NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    previous INTEGER,
    changed_at BIGINT NOT NULL
) ;

-- The rule set that a run began with, and keeps.
CREATE TABLE IF NOT EXISTS pricing_pins (
    run_id VARCHAR(128) NOT NULL PRIMARY KEY,
    feed VARCHAR(200) NOT NULL,
    version INTEGER NOT NULL,
    pinned_at BIGINT NOT NULL
) ;

-- Counts the changes of a feed's rows, for caches of readers.
CREATE TABLE IF NOT EXISTS dataset_versions (
    feed VARCHAR(200) NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    changed_at BIGINT NOT NULL
) ;

-- What a repricing changed, so that it can be taken back. `id` of a snapshot is that of the diamond.
CREATE TABLE IF NOT EXISTS repricings (
    id VARCHAR(128) NOT NULL PRIMARY KEY,
    job_id VARCHAR(128) NOT NULL,
    from_version INTEGER,
    to_version INTEGER NOT NULL,
    state VARCHAR(12) NOT NULL,
    looked_at BIGINT NOT NULL DEFAULT 0,
    changed BIGINT NOT NULL DEFAULT 0,
    unpriced BIGINT NOT NULL DEFAULT 0,
    started_at BIGINT NOT NULL,
    ended_at BIGINT
) ;

CREATE TABLE IF NOT EXISTS repricing_snapshots (
    repricing_id VARCHAR(128) NOT NULL,
    id BIGINT NOT NULL,
    old_version INTEGER NOT NULL,
    old_price DECIMAL(12,2) NOT NULL,
    old_ratio DECIMAL(5,4) NOT NULL,
    old_pricing_rating INTEGER,
    old_rating INTEGER NOT NULL,
    new_price DECIMAL(12,2) NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (repricing_id, id)
) ;

-- What all processes know about the source: the token, encrypted, and how fast it may be asked.
CREATE TABLE IF NOT EXISTS nivoda_tokens (
    id VARCHAR(128) NOT NULL PRIMARY KEY,
    sealed TEXT,
    renew_at BIGINT,
    version BIGINT NOT NULL,
    turn_of VARCHAR(100),
    turn_until BIGINT,
    problem VARCHAR(400),
    trouble VARCHAR(20),
    changed_at BIGINT NOT NULL
) ;

CREATE TABLE IF NOT EXISTS nivoda_pace (
    id VARCHAR(128) NOT NULL PRIMARY KEY,
    gap BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    arrival BIGINT NOT NULL,
    quiet_until BIGINT NOT NULL
) ;

INSERT INTO stepfast_schema (component, version, name, applied_at) VALUES ('diamonds', 1, 'first', CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER));

CREATE VIEW raw_diamonds_nivoda AS
SELECT r.feed AS feed, r.item_id AS supplier_stone_id, json_extract(r.payload, '$.id') AS offer_id, r.payload AS payload,
       r.content_hash AS content_hash, r.run_id AS run_id, strftime('%Y-%m-%d %H:%M:%f', r.observed_at / 1000000.0, 'unixepoch') AS observed_at,
       CASE r.pending WHEN 0 THEN 1 ELSE 0 END AS consolidated, strftime('%Y-%m-%d %H:%M:%f', r.applied_at / 1000000.0, 'unixepoch') AS consolidated_at
  FROM stepfast_raw r
 WHERE r.feed IN ('nivoda-natural', 'nivoda-labgrown') AND 'made by stepfast migrate: 0ef4936d' <> '';

INSERT INTO stepfast_view_names (id, names) VALUES ('diamonds', 'default');
