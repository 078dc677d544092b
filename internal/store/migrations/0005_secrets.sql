-- Secrets that users store for their third-party MCP servers.
CREATE TABLE secrets (
  principal TEXT NOT NULL,   -- the principal's id
  name      TEXT NOT NULL,
  value     BLOB NOT NULL,   -- sealed for that principal and name, by a key that is not here
  created   BIGINT NOT NULL, -- milliseconds
  changed   BIGINT NOT NULL, -- milliseconds
  PRIMARY KEY (principal, name)
) WITHOUT ROWID;
