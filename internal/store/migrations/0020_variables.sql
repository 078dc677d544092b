-- The variables of a session, sealed; NULL: it has none. One byte: they could not be read when the key was changed.
ALTER TABLE sessions ADD COLUMN variables BLOB;
