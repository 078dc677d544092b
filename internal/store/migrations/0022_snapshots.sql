-- Snapshots of sessions. The session may be gone.
CREATE TABLE snapshots (
  id        TEXT PRIMARY KEY,
  owner     TEXT NOT NULL,    -- the principal's id
  name      TEXT NOT NULL,
  session   TEXT NOT NULL,    -- the session that it was made of
  image     TEXT NOT NULL,    -- the frozen image
  workspace TEXT NOT NULL,    -- the workspace with its files, which no session has
  runtime   TEXT NOT NULL,
  template  TEXT NOT NULL,
  flavor    TEXT NOT NULL,
  network   TEXT NOT NULL,    -- what the operator set for that session alone, as in sessions
  bytes     BIGINT NOT NULL,
  created   BIGINT NOT NULL,  -- milliseconds
  UNIQUE (owner, name)
);
