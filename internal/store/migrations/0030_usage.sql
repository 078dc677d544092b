-- What sessions use on each day (UTC).
CREATE TABLE usage_days (
  day      BIGINT NOT NULL, -- days since 1970-01-01
  owner    TEXT NOT NULL,   -- the principal's id
  session  TEXT NOT NULL,   -- '' for what belongs to none, and for those beyond the number of rows of an owner and a day
  cpu_ms   BIGINT NOT NULL,
  memory   BIGINT NOT NULL, -- the most, in bytes
  disk     BIGINT NOT NULL, -- the most, in bytes
  sent     BIGINT NOT NULL, -- over the network, in bytes
  received BIGINT NOT NULL,
  calls    BIGINT NOT NULL,
  PRIMARY KEY (day, owner, session)
);
CREATE INDEX usage_days_owner ON usage_days (owner, day);
-- Of the processor time of a session's sandbox, what is counted.
ALTER TABLE sessions ADD COLUMN cpu_seen BIGINT NOT NULL DEFAULT 0;
