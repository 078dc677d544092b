-- What programs in the background of a session may do, as auth.Scope; empty: all. A snapshot has it too: its programs
-- go on in the sessions that are made of it.
ALTER TABLE sessions ADD COLUMN scope TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN scope TEXT NOT NULL DEFAULT '';
