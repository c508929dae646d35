-- What startup scripts write by phase, as it comes; and what is kept of creates that failed.

ALTER TABLE tasks ADD COLUMN log_build TEXT;
ALTER TABLE tasks ADD COLUMN log_build_bytes BIGINT;
ALTER TABLE tasks ADD COLUMN log_run TEXT;
ALTER TABLE tasks ADD COLUMN log_run_bytes BIGINT;

-- Belongs to the attempt that was assigned at this time; a later one has its own.
CREATE TABLE task_failures (
    task_id        TEXT   NOT NULL PRIMARY KEY,
    environment_id TEXT   NOT NULL,
    assigned_at    BIGINT NOT NULL,
    report         TEXT   NOT NULL,
    console        TEXT   NOT NULL,
    agent          TEXT   NOT NULL,
    kept_until     BIGINT NOT NULL
);
CREATE INDEX task_failures_due ON task_failures (kept_until);
