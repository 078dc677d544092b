-- What a token may be used for, and by which users of its service.
ALTER TABLE tokens ADD COLUMN scope TEXT NOT NULL DEFAULT ''; -- operations, with " " between them; '': all
ALTER TABLE tokens ADD COLUMN acts_for BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE tokens ADD COLUMN used BIGINT; -- seconds; NULL: never
