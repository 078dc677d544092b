-- What came of users' log-ins at third-party MCP servers.
CREATE TABLE logins (
  principal  TEXT NOT NULL, -- the principal's id
  connection TEXT NOT NULL,
  value      BLOB NOT NULL, -- sealed for both and the address, by a key that is not here
  PRIMARY KEY (principal, connection)
) WITHOUT ROWID;
