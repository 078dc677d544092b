CREATE TABLE events (
    id        INTEGER PRIMARY KEY,
    chain     INTEGER NOT NULL,
    time      INTEGER NOT NULL, -- nanoseconds since 1970
    kind      TEXT NOT NULL,
    principal TEXT NOT NULL,
    session   TEXT NOT NULL,
    content   BLOB NOT NULL, -- the event as JSON
    prev      BLOB NOT NULL, -- the hash of the previous event of the chain
    hash      BLOB NOT NULL  -- SHA-256 over prev and content
);
CREATE INDEX events_by_principal ON events (principal);
CREATE INDEX events_by_chain ON events (chain);
CREATE INDEX events_by_time ON events (time);

-- The ends of each chain: the last event that was pruned, and the newest event.
CREATE TABLE event_chains (
    chain       INTEGER PRIMARY KEY,
    count       INTEGER NOT NULL DEFAULT 0,
    anchor_id   INTEGER NOT NULL DEFAULT 0,
    anchor_hash BLOB NOT NULL DEFAULT (zeroblob(32)),
    head_id     INTEGER NOT NULL DEFAULT 0,
    head_hash   BLOB NOT NULL DEFAULT (zeroblob(32))
);
INSERT INTO event_chains (chain) VALUES (0), (1);

CREATE TABLE event_stream (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    epoch   TEXT NOT NULL,
    last_id INTEGER NOT NULL, -- of the newest event when the server ended
    open    INTEGER NOT NULL  -- a server has not ended yet, or has crashed
);
INSERT INTO event_stream VALUES (1, lower(hex(randomblob(4))), 0, 0);
