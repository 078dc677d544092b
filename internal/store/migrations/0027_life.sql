-- Who has paused a session, '' while it is not paused, and when, in milliseconds.
ALTER TABLE sessions ADD COLUMN paused_by TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN paused_at BIGINT NOT NULL DEFAULT 0;
-- When its life ends, in milliseconds, 0 if it does not, and what happens then.
ALTER TABLE sessions ADD COLUMN ends_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN on_end TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN name TEXT NOT NULL DEFAULT '';
-- As JSON; '' without any.
ALTER TABLE sessions ADD COLUMN labels TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN parent TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX sessions_name ON sessions (owner, name) WHERE name <> '';
