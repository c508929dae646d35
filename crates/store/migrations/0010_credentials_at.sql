-- When the credentials of a guest were made, so that they are renewed in time. Where an
-- earlier release wrote them they count as old as their environment.
ALTER TABLE environments ADD COLUMN credentials_at BIGINT;
