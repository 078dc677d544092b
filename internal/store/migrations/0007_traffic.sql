-- What each session moved over the network, over all its sandboxes, in bytes.
ALTER TABLE sessions ADD COLUMN sent BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN received BIGINT NOT NULL DEFAULT 0;
