-- What a token may do beside what its user may.
ALTER TABLE tokens ADD COLUMN metrics BOOLEAN NOT NULL DEFAULT FALSE; -- read /metrics
