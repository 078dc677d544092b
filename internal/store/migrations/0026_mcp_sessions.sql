-- MCP sessions of the stateful protocol, which go on with the next server.
CREATE TABLE mcp_sessions (
  hash      TEXT NOT NULL PRIMARY KEY, -- of the session's id
  principal TEXT NOT NULL, -- the principal's id
  token     TEXT NOT NULL, -- the token's id; empty: none
  view      TEXT NOT NULL, -- of third-party tools, from the address; empty: none
  counted   TEXT NOT NULL, -- the id of the principal or the service whose sessions are bounded together
  said      TEXT NOT NULL, -- by the client, as JSON
  used      INTEGER NOT NULL -- milliseconds since 1970
);
CREATE INDEX mcp_sessions_counted ON mcp_sessions (counted, used);
