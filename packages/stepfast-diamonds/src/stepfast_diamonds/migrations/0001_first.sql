-- The catalogue. Money and measures are decimals. `status` follows `deleted_at`, which the sweep sets: the two cannot disagree.
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
) {table_options};

CREATE UNIQUE INDEX {if_not_exists} diamonds_stone ON diamonds (supplier_stone_id, feed);
CREATE INDEX {if_not_exists} diamonds_rules ON diamonds (ruleset_version);
CREATE INDEX {if_not_exists} diamonds_certificate ON diamonds (certificate_number);

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
) {table_options};

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
) {table_options};

CREATE TABLE IF NOT EXISTS rating_rules (
    version INTEGER NOT NULL,
    number INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    rating INTEGER NOT NULL,
    conditions {json:conditions},
    PRIMARY KEY (version, number)
) {table_options};

CREATE TABLE IF NOT EXISTS pricing_active (
    id INTEGER NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    previous INTEGER,
    changed_at BIGINT NOT NULL
) {table_options};

-- The rule set that a run began with, and keeps.
CREATE TABLE IF NOT EXISTS pricing_pins (
    run_id {key} NOT NULL PRIMARY KEY,
    feed {label} NOT NULL,
    version INTEGER NOT NULL,
    pinned_at BIGINT NOT NULL
) {table_options};

-- Counts the changes of a feed's rows, for caches of readers.
CREATE TABLE IF NOT EXISTS dataset_versions (
    feed {label} NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    changed_at BIGINT NOT NULL
) {table_options};

-- What a repricing changed, so that it can be taken back. `id` of a snapshot is that of the diamond.
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
) {table_options};

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
) {table_options};

-- What all processes know about the source: the token, encrypted, and how fast it may be asked.
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
) {table_options};

CREATE TABLE IF NOT EXISTS nivoda_pace (
    id {key} NOT NULL PRIMARY KEY,
    gap BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    arrival BIGINT NOT NULL,
    quiet_until BIGINT NOT NULL
) {table_options};
