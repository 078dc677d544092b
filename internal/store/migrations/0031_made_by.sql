-- The id of the token with which a token was made; '' for what was made without one.
ALTER TABLE tokens ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
