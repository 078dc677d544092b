-- Third-party MCP servers. Values of variables and headers are never here.
CREATE TABLE connections (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  record TEXT NOT NULL,  -- JSON
  catalog TEXT NOT NULL, -- JSON: what the server offered the last time
  PRIMARY KEY (owner, id)
) WITHOUT ROWID;
