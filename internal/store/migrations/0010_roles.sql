-- Whose a token is, whole: the principal's id beside the name, and the roles.
ALTER TABLE tokens ADD COLUMN principal TEXT NOT NULL DEFAULT '';
UPDATE tokens SET principal = 'user:' || "user";
ALTER TABLE tokens ADD COLUMN roles TEXT NOT NULL DEFAULT ''; -- names, with ", " between them
UPDATE tokens SET roles = 'metrics' WHERE metrics; -- which stays, for a server of before that still runs
