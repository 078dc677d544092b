CREATE TABLE ports (
    session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    port    BIGINT NOT NULL,
    owner   TEXT NOT NULL, -- the principal's id
    hash    TEXT NOT NULL, -- of the link's token
    public  BOOLEAN NOT NULL,
    created BIGINT NOT NULL, -- seconds
    expires BIGINT NOT NULL, -- seconds
    PRIMARY KEY (session, port)
);
