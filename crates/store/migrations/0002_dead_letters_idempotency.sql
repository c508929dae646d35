-- What the fleet gave up on, for people to look at. A repeat updates the row.
CREATE TABLE dead_letters (
    kind          TEXT   NOT NULL,
    entity_id     TEXT   NOT NULL,
    task_id       TEXT   NOT NULL,
    reason        TEXT   NOT NULL,
    retry_count   BIGINT NOT NULL,
    payload       TEXT   NOT NULL,
    first_seen_at BIGINT NOT NULL,
    last_seen_at  BIGINT NOT NULL,
    PRIMARY KEY (kind, entity_id)
);

-- Creates that came with an Idempotency-Key. The row is written in the
-- transaction that inserts the environment; the answer follows once there is one.
CREATE TABLE idempotency_keys (
    tenant         TEXT   NOT NULL,
    key            TEXT   NOT NULL,
    fingerprint    BYTEA  NOT NULL,
    environment_id TEXT   NOT NULL,
    task_id        TEXT   NOT NULL,
    status         BIGINT,
    body           TEXT,
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);
