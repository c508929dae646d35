-- Events that report the end of a build step carry it as JSON; transitions have none.
ALTER TABLE events ADD COLUMN step TEXT NOT NULL DEFAULT '';
