-- GPU inventory, GPU bindings, and what checks and boots say about hosts.

-- What the operator declared, as a capacity document in which zero and empty mean
-- "take what the agent says"; and what of a capacity is no scalar.
ALTER TABLE hosts ADD COLUMN declared TEXT NOT NULL DEFAULT '{}';
ALTER TABLE hosts ADD COLUMN gpu_inventory TEXT NOT NULL DEFAULT '{}';

-- Which GPU units an environment has: of a MIG profile, or whole devices when that
-- is empty. What is free on a host follows from these rows.
ALTER TABLE reservations ADD COLUMN gpu_profile TEXT NOT NULL DEFAULT '';
ALTER TABLE reservations ADD COLUMN mig_count BIGINT NOT NULL DEFAULT 0;
ALTER TABLE reservations ADD COLUMN gpu_uuids TEXT NOT NULL DEFAULT '[]';
CREATE INDEX reservations_of_host ON reservations (host_id);
CREATE INDEX reservations_gpus ON reservations (host_id) WHERE gpus > 0 OR mig_count > 0;

-- The last check of each host's agent. Apart from the host's row, which every
-- placement locks.
CREATE TABLE host_checks (
    host_id      TEXT   NOT NULL PRIMARY KEY REFERENCES hosts (id) ON DELETE CASCADE,
    checked_at   BIGINT NOT NULL,
    changed_at   BIGINT NOT NULL,
    reachable    BIGINT NOT NULL,
    error        TEXT   NOT NULL,
    version      TEXT   NOT NULL,
    guests       BIGINT,
    disk_free_gb BIGINT
);

-- Hosts on which boots failed since the last one that worked.
CREATE TABLE host_failed_boots (
    host_id        TEXT   NOT NULL PRIMARY KEY REFERENCES hosts (id) ON DELETE CASCADE,
    count          BIGINT NOT NULL,
    last_error     TEXT   NOT NULL,
    quarantined_at BIGINT,
    retry_at       BIGINT,
    retries        BIGINT NOT NULL
);
