-- The frozen image that a session sleeps in, '' while it does not sleep, and since when it does, in milliseconds.
ALTER TABLE sessions ADD COLUMN image TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN slept BIGINT NOT NULL DEFAULT 0;
