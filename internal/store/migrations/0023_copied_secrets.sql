-- The names of the stored secrets that programs of a session have got, with spaces between them. What is in the memory
-- and in the files of the session, and of its snapshots, may have their values.
ALTER TABLE sessions ADD COLUMN secrets TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN secrets TEXT NOT NULL DEFAULT '';
