-- Snapshots; their bytes are on the host. `used_at` is when a build last took it as a
-- layer. `name` repeats the metadata's, to be searched for.
CREATE TABLE snapshots (
    id              TEXT   NOT NULL PRIMARY KEY,
    environment_id  TEXT   NOT NULL,
    task_id         TEXT   NOT NULL,
    host_id         TEXT   NOT NULL,
    tenant          TEXT   NOT NULL,
    parent_id       TEXT   NOT NULL,
    mode            TEXT   NOT NULL,
    state           TEXT   NOT NULL,
    kind            TEXT   NOT NULL,
    layer_key       TEXT   NOT NULL,
    arch            TEXT   NOT NULL,
    digest          TEXT   NOT NULL,
    size_bytes      BIGINT NOT NULL,
    retention_until BIGINT,
    name            TEXT   NOT NULL,
    metadata        TEXT   NOT NULL,
    exports         TEXT   NOT NULL,
    last_error      TEXT   NOT NULL,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    used_at         BIGINT NOT NULL
);
CREATE INDEX snapshots_newest ON snapshots (created_at, id);
CREATE INDEX snapshots_of_environment ON snapshots (environment_id, created_at);
CREATE INDEX snapshots_children ON snapshots (parent_id) WHERE parent_id <> '';
CREATE INDEX snapshots_layers ON snapshots (tenant, layer_key, arch, created_at) WHERE layer_key <> '';
CREATE INDEX snapshots_digests ON snapshots (tenant, digest, id) WHERE digest <> '';

-- The last verdict of an environment's probe as JSON; empty without one.
ALTER TABLE environments ADD COLUMN health TEXT NOT NULL DEFAULT '';
