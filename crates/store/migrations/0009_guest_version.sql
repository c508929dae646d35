-- Which release the agent in each guest is of, as its host said; empty until it has.
ALTER TABLE environments ADD COLUMN guest_version TEXT NOT NULL DEFAULT '';
