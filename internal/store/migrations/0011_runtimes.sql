-- Which runtime made the sandbox of a session. There was only one before.
ALTER TABLE sessions ADD COLUMN runtime TEXT NOT NULL DEFAULT 'gvisor';
