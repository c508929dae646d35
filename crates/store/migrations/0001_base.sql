-- The state of a fleet. Both engines take this text as it is.
-- Times are microseconds since the Unix epoch; documents are JSON as text.

-- One row: who we are. The id is the owner tag of every VM.
CREATE TABLE fleet (
    id         BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    fleet_id   TEXT   NOT NULL,
    created_at BIGINT NOT NULL
);

-- One row: the place of the newest event. Writers take it last in their
-- transaction, so places are given out in the order of commits and a reader
-- that has seen one has seen all before it.
CREATE TABLE event_clock (
    id    BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    value BIGINT NOT NULL
);
INSERT INTO event_clock (id, value) VALUES (1, 0);

-- The running orchestrators. One that has not beaten for a while is dead, and
-- its leases and operations with it.
CREATE TABLE replicas (
    id         TEXT   NOT NULL PRIMARY KEY,
    started_at BIGINT NOT NULL,
    seen_at    BIGINT NOT NULL
);

CREATE TABLE leases (
    name       TEXT   NOT NULL PRIMARY KEY,
    owner      TEXT   NOT NULL,
    epoch      BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE TABLE hosts (
    id                   TEXT   NOT NULL PRIMARY KEY,
    url                  TEXT   NOT NULL,
    region               TEXT   NOT NULL,
    backend              TEXT   NOT NULL,
    labels               TEXT   NOT NULL,
    state                TEXT   NOT NULL,
    arch                 TEXT   NOT NULL,
    gpu_kind             TEXT   NOT NULL,
    cpus_total           BIGINT NOT NULL,
    cpus_allocated       BIGINT NOT NULL,
    ram_mb_total         BIGINT NOT NULL,
    ram_mb_allocated     BIGINT NOT NULL,
    storage_gb_total     BIGINT NOT NULL,
    storage_gb_allocated BIGINT NOT NULL,
    vms_total            BIGINT NOT NULL,
    vms_allocated        BIGINT NOT NULL,
    gpus_total           BIGINT NOT NULL,
    gpus_allocated       BIGINT NOT NULL,
    last_seen            BIGINT NOT NULL,
    created_at           BIGINT NOT NULL,
    updated_at           BIGINT NOT NULL,
    -- 1: token is sealed by the vault; 0: plain, stored without a key.
    token_sealed         BIGINT NOT NULL,
    token                BYTEA  NOT NULL
);

-- Tasks outlive their environments. `active` while the environment is tracked:
-- that is what makes a task id unique among tracked environments.
CREATE TABLE tasks (
    id             TEXT   NOT NULL PRIMARY KEY,
    environment_id TEXT   NOT NULL,
    active         BIGINT NOT NULL,
    status         TEXT   NOT NULL,
    last_error     TEXT   NOT NULL,
    assigned_at    BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    -- What the startup script wrote; all three are null when there was none.
    output_exit    BIGINT,
    output_stdout  TEXT,
    output_stderr  TEXT
);

-- Tracked environments; the row goes when the environment does. The long and
-- rarely read columns come last. `task_id` stays to the end, although readers
-- see none once teardown has started.
CREATE TABLE environments (
    id            TEXT   NOT NULL PRIMARY KEY,
    version       BIGINT NOT NULL,
    state         TEXT   NOT NULL,
    task_id       TEXT   NOT NULL,
    tenant        TEXT   NOT NULL,
    host_id       TEXT REFERENCES hosts (id),
    url           TEXT   NOT NULL,
    error         TEXT   NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    activity_at   BIGINT NOT NULL,
    -- The operation under way; all three are null when there is none.
    op_kind       TEXT,
    op_owner      TEXT,
    op_expires_at BIGINT,
    endpoints     TEXT   NOT NULL,
    spec          TEXT   NOT NULL,
    -- The boot of the guest that was set up; empty when unknown.
    boot_id       TEXT   NOT NULL DEFAULT '',
    guest_token   BYTEA,
    secrets       BYTEA,
    request       TEXT   NOT NULL
);

-- What an environment takes from its host. Deleting the row is what gives it
-- back, so giving back twice is impossible.
CREATE TABLE reservations (
    environment_id TEXT   NOT NULL PRIMARY KEY,
    host_id        TEXT   NOT NULL REFERENCES hosts (id),
    cpus           BIGINT NOT NULL,
    ram_mb         BIGINT NOT NULL,
    storage_gb     BIGINT NOT NULL,
    gpus           BIGINT NOT NULL
);

-- The stream: one row per transition, written in the transition's transaction.
CREATE TABLE events (
    seq            BIGINT NOT NULL PRIMARY KEY,
    id             TEXT   NOT NULL,
    environment_id TEXT   NOT NULL,
    state          TEXT   NOT NULL,
    url            TEXT   NOT NULL,
    error          TEXT   NOT NULL,
    at             BIGINT NOT NULL
);
CREATE INDEX events_of_environment ON events (environment_id, seq);
CREATE INDEX events_ended ON events (at) WHERE state IN ('destroyed', 'failed');

CREATE TABLE audit_events (
    seq         BIGINT NOT NULL PRIMARY KEY,
    entity_type TEXT   NOT NULL,
    entity_id   TEXT   NOT NULL,
    type        TEXT   NOT NULL,
    payload     TEXT   NOT NULL,
    at          BIGINT NOT NULL
);
CREATE INDEX audit_events_of_entity ON audit_events (entity_type, entity_id, seq);

CREATE TABLE api_keys (
    id           TEXT   NOT NULL PRIMARY KEY,
    hash         BYTEA  NOT NULL,
    label        TEXT   NOT NULL,
    scopes       TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT,
    revoked_at   BIGINT
);
CREATE UNIQUE INDEX api_keys_hash ON api_keys (hash);
