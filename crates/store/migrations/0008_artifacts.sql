-- Which base image a snapshot's disk belongs to: equal disks of different images are
-- different artifacts. And what environments were started from, for as long as they
-- exist, so that it is not collected.
ALTER TABLE snapshots ADD COLUMN base_digest TEXT NOT NULL DEFAULT '';

CREATE TABLE environment_seeds (
    environment_id TEXT NOT NULL PRIMARY KEY REFERENCES environments (id) ON DELETE CASCADE,
    snapshot_id    TEXT NOT NULL
);
CREATE INDEX environment_seeds_of ON environment_seeds (snapshot_id);
