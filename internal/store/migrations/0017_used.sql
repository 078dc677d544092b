-- How large each session's workspace was when it was measured last, in bytes.
ALTER TABLE sessions ADD COLUMN disk BIGINT NOT NULL DEFAULT 0;

-- What all sandboxes of each principal moved over the network on the last day on which they did, in bytes.
CREATE TABLE traffic (
  owner TEXT PRIMARY KEY,
  day BIGINT NOT NULL, -- UTC: days since 1970-01-01
  sent BIGINT NOT NULL,
  received BIGINT NOT NULL
) WITHOUT ROWID;
