-- An answer to a call that asks by itself is about the whole text that was shown, of which this is the hash. Where
-- the detail says everything, it is empty. Answers from before were about less than was shown: rules ask again.
ALTER TABLE answers ADD COLUMN shown TEXT NOT NULL DEFAULT '';
DELETE FROM answers WHERE operation IN ('mcp.install', 'mcp.connect');
