-- What the operator set for one session's network alone: JSON, or empty.
ALTER TABLE sessions ADD COLUMN network TEXT NOT NULL DEFAULT '';
