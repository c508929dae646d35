-- Whose a task and a snapshot are: the API key that made it, empty for the master.
ALTER TABLE tasks ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN owner TEXT NOT NULL DEFAULT '';
UPDATE tasks SET owner = (SELECT e.tenant FROM environments AS e WHERE e.id = tasks.environment_id)
    WHERE EXISTS (SELECT 1 FROM environments AS e WHERE e.id = tasks.environment_id);
UPDATE snapshots SET owner = (SELECT e.tenant FROM environments AS e WHERE e.id = snapshots.environment_id)
    WHERE EXISTS (SELECT 1 FROM environments AS e WHERE e.id = snapshots.environment_id);
UPDATE snapshots SET owner = tenant WHERE layer_key <> '';
CREATE INDEX snapshots_of_owner ON snapshots (owner, created_at, id);

-- What is done with the environments of a host that is being drained.
ALTER TABLE hosts ADD COLUMN evict TEXT NOT NULL DEFAULT 'none';
