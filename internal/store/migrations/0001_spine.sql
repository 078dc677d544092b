CREATE TABLE tokens (
    id      TEXT PRIMARY KEY,
    hash    TEXT NOT NULL UNIQUE,
    "user"  TEXT NOT NULL,
    service BOOLEAN NOT NULL,
    created BIGINT NOT NULL, -- seconds
    expires BIGINT           -- seconds; NULL: never
);

CREATE TABLE sessions (
    id        TEXT PRIMARY KEY,
    owner     TEXT NOT NULL, -- the principal's id
    home      BOOLEAN NOT NULL,
    template  TEXT NOT NULL,
    flavor    TEXT NOT NULL,
    sandbox   TEXT NOT NULL, -- '' while it has none
    workspace TEXT NOT NULL,
    state     TEXT NOT NULL,
    created   BIGINT NOT NULL, -- milliseconds
    used      BIGINT NOT NULL, -- milliseconds
    lost      TEXT NOT NULL    -- why variables and processes are gone, until it was said
);

CREATE UNIQUE INDEX sessions_home ON sessions (owner) WHERE home;
